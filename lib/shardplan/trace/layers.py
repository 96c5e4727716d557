"""Extrapolate a traced step from few blocks to many: the counts of equal live tensors are linear in the blocks.

[Note: linear] Insert one more block in the middle of a decoder. At the fullest moment of any other part of the step,
one more block of parameters is live, and one more block of activations or gradients if those are live at that moment.
So each kind of tensor grows by a fixed number, the same for every inserted block. Two conditions must hold. A block's
neighbours must look alike, so a few blocks at both ends are traced as they are. Each tensor must belong to one block;
buckets do not, so DDP and ZeRO 1 and 2 are traced whole. If one of several blocks is recomputed, that many blocks are
inserted at a time.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from shardplan.planned_job import Setup
from shardplan.trace.tracker import Part

ENDS = 2  # blocks at each end of a decoder that differ: FSDP gathers one ahead, and reduces one behind


def depths(setup: Setup) -> tuple[int, ...]:
    """Return the numbers of blocks to trace: two small numbers, or all blocks."""
    n, s = setup.shape.n_layers, setup.strategy
    period = s.recompute_every if s.recompute == "full" else 1
    least = 2 * (ENDS + period)
    few = least + (n - least) % period
    linear = s.sharding in ("FULL_SHARD", "SHARD_GRAD_OP", "NONE") and s.wrap == "block"
    return (few, few + period) if linear and few + period < n else (n,)


def deeper(few: list[Part], more: list[Part], n_layers: int) -> list[Part] | None:
    """Extrapolate the parts of a step to `n_layers` blocks from two shallower steps; None if counts are not linear."""
    at, period = _n_blocks(few), _n_blocks(more) - _n_blocks(few)
    few, more, front, put_in = dict(few), dict(more), ENDS + period, n_layers - at

    def traced(name: str, block: int) -> Counter:
        """Count a part's live tensors with all blocks inserted. `block`: its number in `few`, or 0 if in no block."""
        in_more = block + period if block > front else block
        return _line(few[_named(name, block)], more[_named(name, in_more)], Fraction(put_in, period))

    def part(name: str, block: int) -> Counter:
        if block <= front:
            return traced(name, block)
        if block > front + put_in:
            return traced(name, block - put_in)
        done, alike = divmod(block - front - 1, period)
        before, after = traced(name, front - period + 1 + alike), traced(name, front + 1 + alike)
        return _line(before, after, Fraction(done + 1, put_in // period + 1))

    parts = [(_named(name, block), part(name, block)) for name, block in _order(few, n_layers)]
    if any(n < 0 or n.denominator > 1 for _, live in parts for n in live.values()):
        return None
    return [(name, Counter({kind: int(n) for kind, n in live.items() if n})) for name, live in parts]


def _line(first: Counter, second: Counter, x: Fraction) -> Counter:
    """Extrapolate counts linearly: `first` at x = 0, `second` at x = 1."""
    return Counter({kind: first[kind] + x * (second[kind] - first[kind]) for kind in first.keys() | second.keys()})


def _order(few: dict[str, Counter], n_layers: int) -> Iterator[tuple[str, int]]:
    """Yield (name, block number or 0) for each part of a step of `n_layers` blocks."""
    for name in few:
        if not _block(name):
            yield name, 0
        elif name.endswith("forward of block 1"):
            yield from ((name[:-2], i) for i in range(1, n_layers + 1))
        elif name.endswith("backward of block 1"):
            yield from ((name[:-2], i) for i in range(n_layers, 0, -1))


def _named(name: str, block: int) -> str:
    return f"{name} {block}" if block else name


def _block(name: str) -> int:
    return int(name.split()[-1]) if " block " in name else 0


def _n_blocks(parts: list[Part]) -> int:
    return max(_block(name) for name, _ in parts)
