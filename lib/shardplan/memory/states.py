"""Memory that a rank holds between steps: parameters, optimizer states, and the gradients when backward ends.

[Note: shares] FSDP cuts each parameter on dim 0 into N chunks of ceil(rows / N) rows, padded, so that N shards may hold
a little more than the whole. ZeRO cuts whole buckets, and pads one element a rank at most. `shards` ranks share a copy;
with a hybrid mesh each of the `data_ranks / shards` replicas has its own copy.

Source: torch.distributed.fsdp's FSDPParam; Rajbhandari et al. 2020, "ZeRO", section 3.1 (16 bytes a parameter in mixed
precision with Adam: weight 2, gradient 2, master 4, two moments of 4).
"""

from collections.abc import Sequence
from heapq import heapreplace
from math import ceil

from shardplan.planned_job import Setup
from shardplan.records import Term
from shardplan.stage_parameters import Stage, Weight
from shardplan.strategy import OPTIMIZERS

STEP_BYTES = 4  # of Adam's count of steps, a float32 for each parameter
SMALLEST_8BIT, BLOCK_8BIT = 4096, 256  # torchao: fewer numbers, or no multiple of a block, stay in float32
TABLES_8BIT = 2 * 256 * 4  # of the two states' 256 values each, for each parameter


def parameters(setup: Setup, stage: Stage) -> Term:
    cut = setup.strategy.sharded[0]
    n_bytes = sum(w.stored * n for w, n in _numels(setup, stage.weights, cut))
    each = f"{setup.strategy.bytes.parameters} bytes each" + (", the frozen base in 4 bits" * setup.strategy.base_4bit)
    return Term("parameters", f"parameters, {each}{_share(setup, cut)}", n_bytes)


def gradients(setup: Setup, stage: Stage) -> Term:
    """Gradients that a rank holds when the last micro-batch's backward ends."""
    cut, each = setup.strategy.sharded[1], setup.strategy.bytes.gradients
    n_bytes = each * sum(n for w, n in _numels(setup, trained(stage), cut))
    return Term("gradients", f"gradients, {each} bytes each{_share(setup, cut)}", n_bytes)


def optimizer_states(setup: Setup, stage: Stage) -> tuple[Term, ...]:
    """Adam's two moments (or momentum's one, or none), the fp32 master weights if there are any, Adam's step counts.

    Muon has momentum for matrices, and AdamW's states for the rest.
    """
    b, optimizer = setup.strategy.bytes, setup.strategy.optimizer
    shards = shards_of_states(setup, stage)
    share, n = _share(setup, setup.strategy.sharded[2]), sum(shards)
    count = OPTIMIZERS[optimizer][0]
    terms = []
    if optimizer == "adamw-8bit":
        n_bytes = sum(map(_bytes_8bit, shards))
        terms.append(Term("optimizer_states", f"two moments in 8 bits, a scale for each 256{share}", n_bytes))
    elif optimizer == "muon":
        matrices, others = muon_shards(setup, stage)
        words = f"Muon's momentum, of the blocks' matrices, {b.states} bytes each{share}"
        terms.append(Term("optimizer_states", words, b.states * sum(matrices)))
        words = f"AdamW's two moments, of all other parameters, 2 x {b.states} bytes each{share}"
        terms.append(Term("optimizer_states", words, 2 * b.states * sum(others)))
        terms.append(Term("optimizer_states", "AdamW's count of steps, for each of these", STEP_BYTES * len(others)))
    elif count:
        words = f"{'two moments' if count == 2 else 'momentum'}, {count} x {b.states} bytes each{share}"
        terms.append(Term("optimizer_states", words, count * b.states * n))
    if b.master:
        terms.append(Term("optimizer_states", f"master weights, {b.master} bytes each{share}", b.master * n))
    if optimizer.startswith("adamw"):
        terms.append(Term("optimizer_states", "a count of steps for each parameter", STEP_BYTES * len(shards)))
    return tuple(terms)


def trained(stage: Stage) -> list[Weight]:
    return [w for w in stage.weights if w.trained]


def shards_of_states(setup: Setup, stage: Stage) -> list[int]:
    """Elements of each tensor that the optimizer of the fullest rank works on."""
    weights, sharding = trained(stage), setup.strategy.sharding
    if sharding in ("NONE", "DDP") or setup.shards == 1:
        return [w.numel for w in weights]
    if sharding == "DDP+ZERO_1":
        return max(assign_whole_parameters(weights, setup.shards), key=sum)
    if setup.strategy.sharded[0]:
        return [w.shard_numel(setup.shards) for w in weights]
    experts = [w for w in weights if w.spread > 1]
    others = [w for w in weights if w.spread == 1]
    apart = ((others, setup.shards), (experts, setup.shards // setup.strategy.expert))
    return [n for part, ranks in apart for bucket in buckets(setup, part) for n in slice_of(bucket, ranks)]


def muon_shards(setup: Setup, stage: Stage) -> tuple[list[int], list[int]]:
    """Elements of each tensor, on the fullest rank, that Muon updates, and of each that AdamW updates."""
    owned = _numels(setup, trained(stage), setup.strategy.sharded[0])
    by_muon = [n for w, n in owned if w.orthogonal]
    return by_muon, [n for w, n in owned if not w.orthogonal]


def assign_whole_parameters(weights: Sequence[Weight], n: int) -> list[list[int]]:
    """Assign each parameter, the largest first, to the rank with the fewest elements. Returns elements by rank, of
    the ranks that get any.

    Source: torch.distributed.optim.ZeroRedundancyOptimizer._partition_parameters.
    """
    n = max(1, min(n, len(weights)))
    ranks: list[list[int]] = [[] for _ in range(n)]
    fewest = [(0, rank) for rank in range(n)]  # a heap of (elements, rank)
    for numel in sorted((w.numel for w in weights), reverse=True):
        total, rank = fewest[0]
        ranks[rank].append(numel)
        heapreplace(fewest, (total + numel, rank))
    return ranks


def buckets(setup: Setup, weights: Sequence[Weight]) -> list[list[Weight]]:
    """Fill buckets with whole gradients in backward's order, the last parameter first; each closes at its cap."""
    cap = setup.strategy.bucket_cap_mb * 2**20
    closed: list[list[Weight]] = []
    bucket: list[Weight] = []
    n_bytes = 0.0
    for w in reversed(weights):
        bucket.append(w)
        n_bytes += w.numel * w.stored
        if n_bytes >= cap:
            closed.append(bucket)
            bucket, n_bytes = [], 0.0
    return closed + [bucket] if bucket else closed


def slice_of(bucket: list[Weight], n: int) -> list[int]:
    """The first rank's slice of a bucket: elements of each parameter in it."""
    left, owned = ceil(sum(w.numel for w in bucket) / n), []
    for w in bucket:
        if left > 0:
            owned.append(min(w.numel, left))
            left -= w.numel
    return owned


def _numels(setup: Setup, weights: Sequence[Weight], cut: bool):
    """Return (weight, elements of it that the fullest rank holds); for buckets, the first weight and the slice."""
    if not cut or setup.shards == 1:
        return [(w, w.numel) for w in weights]
    if setup.strategy.sharded[0]:
        return [(w, w.shard_numel(setup.shards)) for w in weights]
    return [(bucket[0], ceil(sum(w.numel for w in bucket) / setup.shards)) for bucket in buckets(setup, weights)]


def _share(setup: Setup, cut: bool) -> str:
    return f", 1/{setup.shards} of them" if cut and setup.shards > 1 else ""


def _bytes_8bit(n: int) -> float:
    if n < SMALLEST_8BIT or n % BLOCK_8BIT:
        return 8 * n
    return 2 * (n + 4 * n / BLOCK_8BIT) + TABLES_8BIT
