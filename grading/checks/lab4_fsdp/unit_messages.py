"""Judge by the messages of a step what the units are: every block is one, and the rest is the root's."""

from collections.abc import Iterable
from typing import NamedTuple

from shardplan.compare_formulas import mib
from shardplan.formulas import shard_bytes

FEW_ELEMENTS = 16  # a collective this small is a count or a checksum
CLOSE = 0.01  # of a unit's elements: FSDP1 pads its flat parameters
SPARE_MESSAGES = 1  # of the root: it may be gathered again for backward, or be two units


class Message(NamedTuple):
    kind: str
    group_size: int
    elements: int  # that this rank puts in


class Units(NamedTuple):
    """A model's units: elements of a block and of the root, whole and as this rank gathers them."""

    n_blocks: int
    block: int
    root: int
    block_shard: int
    root_shard: int
    ranks: int

    @classmethod
    def of(cls, units: list[list], ranks: int) -> "Units":
        """Return the sizes of units, given the parameters of each; the root is last."""
        whole = [sum(p.numel() for p in unit) for unit in units]
        shards = [sum(shard_bytes(p, ranks) // p.itemsize for p in unit) for unit in units]
        return cls(len(units) - 1, whole[0], whole[-1], shards[0], shards[-1], ranks)


def copied_bytes(units: Units) -> tuple[int, int]:
    """Return the float32 bytes that a rank's step copies to the device and to the host, if shards live on the host.

    A block's shard goes in twice, the root's once, as it stays gathered after forward; all gradients go out once.
    """
    share = 4 * (units.n_blocks * units.block_shard + units.root_shard)
    return 2 * share - 4 * units.root_shard, share


def gathers(sent: Iterable[Message], kind: str = "all_gather") -> list[int]:
    """Return the elements of each, without counts and checksums."""
    return [m.elements for m in sent if m.kind == kind and m.elements > FEW_ELEMENTS]


def root_again(sent: list[Message], units: Units) -> bool:
    """Return whether what is no block's is gathered twice, as with a root that reshards after forward."""
    _, rest = _split(gathers(sent), units.block_shard)
    return sum(rest) > 1.5 * units.root_shard


def wrong_sizes(sent: list[Message], units: Units) -> str:
    """Return in words what is gathered or reduced that is no block and not the root; empty if nothing is."""
    arrive, leave = gathers(sent), gathers(sent, "reduce_scatter")
    if not arrive or not leave:
        return "nothing is gathered, or nothing reduce_scattered: nothing is in units."
    if odd := {m.group_size for m in sent if m.kind in ("all_gather", "reduce_scatter")} - {units.ranks}:
        return f"messages go among {min(odd)} ranks, where all {units.ranks} shard."
    ways = (arrive, units.block_shard, units.root_shard), (leave, units.block, units.root)
    for elements, block, root in ways:
        if max(elements) > (1 + CLOSE) * max(block, root):
            whole = 4 * max(elements) * (units.ranks if elements is arrive else 1)
            if len(elements) == 1:
                return f"the whole model is one unit: {mib(whole)} are gathered at once."
            return f"a unit of {mib(whole)} is more than one block: a block has {mib(4 * units.block)}."
    for elements, block, root in ways:
        _, rest = _split(elements, block)
        if len(rest) > 1 + SPARE_MESSAGES:
            both = f"{len(arrive)} all_gathers and {len(leave)} reduce_scatters"
            return f"{both}, and {len(rest)} are of another size than a block, where the root takes one or two."
        times = sum(rest) / root
        if min(abs(times - n) for n in ((1, 2) if elements is arrive else (1,))) > CLOSE:
            return f"what is in no block's unit has {times:.2f} times the elements of the root: some block is no unit."
    return ""


def wrong_counts(sent: list[Message], units: Units) -> str:
    """Return in words how often blocks are gathered and reduced, if not twice and once; empty if right."""
    arrive, _ = _split(gathers(sent), units.block_shard)
    leave, _ = _split(gathers(sent, "reduce_scatter"), units.block)
    if len(arrive) != 2 * units.n_blocks:
        due = f"where {2 * units.n_blocks} are due: for forward, and for backward"
        return f"blocks are gathered {len(arrive)} times in a step, {due}."
    if len(leave) != units.n_blocks:
        return f"blocks' gradients are reduced {len(leave)} times in a step, where {units.n_blocks} are due."
    return ""


def _split(elements: list[int], block: int) -> tuple[list[int], list[int]]:
    """Return those of a block's size, and the others."""
    of_block = [abs(n / block - 1) <= CLOSE for n in elements]
    pairs = list(zip(elements, of_block, strict=True))
    return [n for n, is_block in pairs if is_block], [n for n, is_block in pairs if not is_block]
