"""Single changes of a strategy that may save memory or time, each with its price. A plan shows whether a change helps.

The global batch stays the same: if micro-batches get smaller, there are more of them, and the other way round. A change
that can't keep it says so in its note, and has the price of another training, or of more GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardplan.aliases import as_options
from shardplan.planned_job import Setup
from shardplan.strategy import CROSS_ENTROPY, NEWER_ATTENTION, OFFLOAD, OPTIMIZER_KERNELS, RECOMPUTE, Strategy

# Not offered: they are how some programs compute the loss, and no way to save anything; or it rounds to 16 bits
LOSSES = tuple(loss for loss in CROSS_ENTROPY if loss not in ("shifted", "held", "vocabulary", "plain"))
# What a change costs, the cheapest first. A change's price is an index of this tuple.
PRICES = (
    "nothing but a line of code",
    "time, memory or traffic",
    "other rounding",
    "another parallelism, and code for it",
    "more GPUs",
    "another training",
)
NOTHING, TRADE, ROUNDING, CODE, GPUS, TRAINING = range(len(PRICES))


@dataclass(frozen=True)
class Change:
    price: int  # an index of PRICES
    fields: tuple[tuple[str, object], ...]  # of the strategy
    note: str = ""  # what a reader must know before following it
    world_size: int | None = None

    def words(self, setup: Setup) -> str:
        """Describe what the change does to this setup: "recompute='selective', micro_batch=1"."""
        gpus = {"GPUs": self.world_size} if self.world_size else {}
        said = ", ".join(f"{name}={value!r}" for name, value in (self.changed(setup) | gpus).items())
        return f"{said} ({self.note})" if self.note else said

    def options(self, setup: Setup) -> str:
        """Return the same as options of `shardlab plan`, to paste: "--recompute selective --micro-batch 1"."""
        said = as_options(self.changed(setup) | ({"world_size": self.world_size} if self.world_size else {}))
        return f"{said} ({self.note})" if self.note else said

    def changed(self, setup: Setup) -> dict:
        return {name: value for name, value in self.fields if value != getattr(setup.strategy, name)}

    def applied(self, setup: Setup) -> Setup | None:
        """Return the changed setup; None if it is not valid, or the same."""
        try:
            strategy = replace(setup.strategy, **dict(self.fields))
            changed = replace(setup, strategy=strategy, world_size=self.world_size or setup.world_size)
        except ValueError:
            return None
        return None if changed == setup else changed

    def and_(self, other: "Change") -> "Change | None":
        """Combine both changes; None if they change the same field."""
        names = [name for name, _ in (*self.fields, *other.fields)]
        if len(set(names)) < len(names) or (self.world_size and other.world_size):
            return None
        note = "; ".join(n for n in (self.note, other.note) if n)
        fields = self.fields + other.fields
        return Change(max(self.price, other.price), fields, note, self.world_size or other.world_size)


def single_changes(setup: Setup) -> list[Change]:
    """Return all single changes, the cheapest first, including those that are not valid for this setup."""
    s = setup.strategy
    found = [*_free(s), *_recompute(s), *_batches(s), *_sharding(setup), *_precision(s), *_parallel(setup)]
    found += [*(_change(TRADE, offload=where) for where in OFFLOAD), *_lora(s)]
    return sorted(found, key=lambda change: change.price)


def _change(price: int, note: str = "", **fields) -> Change:
    return Change(price, tuple(fields.items()), note)


def _free(s: Strategy) -> Iterator[Change]:
    if s.sharding.startswith("DDP"):
        yield _change(NOTHING, gradient_as_bucket_view=True)
    for kernel in ("flash", *NEWER_ATTENTION):
        yield _change(NOTHING, "a package of its own" if kernel == "flash-3" else "", attention=kernel)
    yield _change(NOTHING, wrap="block")
    for kernel in OPTIMIZER_KERNELS:
        yield _change(NOTHING, optimizer_kernel=kernel)
    yield _change(NOTHING, norm_kernel="fused")
    yield _change(NOTHING, expandable_segments=True)
    yield _change(NOTHING, compile=True)
    for loss in LOSSES:
        yield _change(NOTHING, cross_entropy=loss)
    if s.tensor > 1:
        yield _change(TRADE, gather_again=True)
        yield _change(TRADE, async_tensor=True)
    if s.accumulation > 1:
        yield _change(TRADE, accumulate_unsharded=not s.accumulate_unsharded)


def _recompute(s: Strategy) -> Iterator[Change]:
    for kind in RECOMPUTE:
        yield _change(TRADE, recompute=kind, recompute_every=1)
    for every in (4, 2):
        yield _change(TRADE, recompute="full", recompute_every=every)
    yield _change(TRADE, offload_activations=True)


def _batches(s: Strategy) -> Iterator[Change]:
    for parts in (2, 4, 8):
        if s.micro_batch % parts == 0:
            yield _change(TRADE, micro_batch=s.micro_batch // parts, accumulation=s.accumulation * parts)
        if s.accumulation % parts == 0:
            yield _change(TRADE, micro_batch=s.micro_batch * parts, accumulation=s.accumulation // parts)
    if s.accumulation == 1:
        for times in (2, 4):
            yield _change(TRAINING, f"{times} times the global batch", micro_batch=s.micro_batch * times)
            yield _change(TRAINING, f"{times} times the global batch", accumulation=times)


def _sharding(setup: Setup) -> Iterator[Change]:
    for sharding in ("NONE", "DDP", "ZERO_1", "ZERO_2", "SHARD_GRAD_OP", "FULL_SHARD"):
        yield _change(TRADE, sharding=sharding, shard_size=None)
        if setup.nodes > 1 and sharding in ("SHARD_GRAD_OP", "FULL_SHARD"):
            for nodes in (1, 2, 4):
                yield _change(TRADE, sharding=sharding, shard_size=nodes * setup.machine.gpus_per_node)


def _precision(s: Strategy) -> Iterator[Change]:
    if s.precision == "fp32":
        yield _change(ROUNDING, precision="bf16-mixed")
    if s.precision == "bf16-mixed":
        yield _change(ROUNDING, "gradients are summed in bf16", precision="bf16-mixed-bf16-reduce")
    if s.optimizer == "adamw":
        yield _change(ROUNDING, optimizer="adamw-8bit")
    # A scale for each tensor: published runs have been as fast as planned. Those with scales of rows were slower
    yield _change(ROUNDING, products="fp8", compile=True)
    yield _change(ROUNDING, products="fp8", gather="fp8", compile=True)


def _parallel(setup: Setup) -> Iterator[Change]:
    s = setup.strategy
    for degree in (1, 2, 4, 8):
        if degree <= setup.machine.gpus_per_node:
            yield from _fewer_batches(s, s.tensor, tensor=degree)
        yield from _fewer_batches(s, s.context, context=degree)
    for times in (2, 4, 8, 16, 32):
        if s.accumulation % times == 0:
            kept = (("accumulation", s.accumulation // times),)
            yield Change(GPUS, kept, world_size=setup.world_size * times)
        else:
            yield Change(GPUS, (), f"{times} times the global batch", setup.world_size * times)


def _fewer_batches(s: Strategy, degree: int, **new) -> Iterator[Change]:
    """Yield a change of degree. If fewer sequences are computed at a time, more micro-batches make up for it."""
    (after,) = new.values()
    if s.accumulation * after % degree == 0:
        yield _change(CODE, accumulation=s.accumulation * after // degree, **new)


def _lora(s: Strategy) -> Iterator[Change]:
    if not s.lora_rank:
        yield _change(TRAINING, "trains adapters, not the model", lora_rank=16)
        yield _change(TRAINING, "trains adapters on 4-bit weights", lora_rank=16, base_4bit=True)
