"""Search for the fastest strategy that fits. All sensible ones are planned: some hundreds to some thousand.

    search("8B", "dgx-h100", gpus=64, global_batch=256, seq_len=8192).best

Fields of `Strategy` that are given stay as they are. The search varies these: what is sharded and over how many ranks,
what is recomputed, the micro-batch, and tensor, pipeline and (of a mixture) expert parallelism. It tries context
parallelism for sequences of 32,768 tokens and more, and offload only if nothing fits without it. Newer options are
tried on the best plans (`proposals`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from shardplan.aliases import in_our_words
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.search.proposals import Proposal, proposals
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardsim.machines import Machine

SHARDINGS = ("NONE", "DDP", "ZERO_1", "ZERO_2", "SHARD_GRAD_OP", "FULL_SHARD")
WITH_MODEL_PARALLEL = ("ZERO_1", "FULL_SHARD")  # Megatron's distributed optimizer, and torchtitan's FSDP2
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
RECOMPUTE = ("none", "selective", "products", "full")
TENSOR = (1, 2, 4, 8)  # inside a node
PIPELINE = (1, 2, 4, 8, 16)
CONTEXT = (1, 2, 4, 8)
EXPERT = (1, 8, 64)  # of a mixture
LONG = 32_768  # tokens: sequences of this length or more may be split


@dataclass(frozen=True)
class Search:
    """Result of a search. `fitting`: plans that surely fit, the fastest first; `n_maybe` more may fit. `proposals` are
    faster still, by options that change the program or its rounding."""

    fitting: tuple[Plan, ...]
    n_tried: int
    n_maybe: int
    proposals: tuple[Proposal, ...] = ()

    @property
    def best(self) -> Plan | None:
        return self.fitting[0] if self.fitting else None

    @property
    def front(self) -> tuple[Plan, ...]:
        """Plans that no other plan beats in both speed and size: the fastest first, then ever smaller ones."""
        front: list[Plan] = []
        for plan in self.fitting:
            if not front or plan.memory.device_bytes[1] < front[-1].memory.device_bytes[1]:
                front.append(plan)
        return tuple(front)


def search(
    model: str | Shape,
    machine: str | Machine,
    *,
    gpus: int,
    global_batch: int | None = None,
    progress: Callable[[list], Iterable] = iter,
    **fixed,
) -> Search:
    """Plan all strategies for `gpus` GPUs. `global_batch`: sequences a step; strategies that can't have exactly that
    many are left out. Without it a step has `accumulation` micro-batches, 1 by default. `progress` wraps the list of
    what is tried, as `rich.progress.track` does.

    Raises ValueError as `plan` does.
    """
    start = setup_of(model, machine, gpus, **fixed)
    fixed = in_our_words(fixed, start.machine, gpus)
    verdicts, fitting = Counter(), []
    for offload in (start.strategy.offload,) if "offload" in fixed else ("none", "cpu", "nvme"):
        for growing in progress([*_layouts(start, {**fixed, "offload": offload}, global_batch)]):
            for setup in growing:
                plan = Plan(setup, memory_plan(setup, every_block=False), None)
                verdicts[plan.fits] += 1
                if plan.fits == "no":
                    break
                if plan.fits == "yes":
                    fitting.append(replace(plan, speed=speed_plan(setup)))
        if fitting:
            break
    fitting.sort(key=lambda plan: -plan.job_tokens_per_s)
    proposed = proposals(fitting, fixed) if fitting else ()
    return Search(tuple(fitting), verdicts.total(), verdicts["maybe"], proposed)


def _layouts(start: Setup, fixed: dict, global_batch: int | None) -> Iterator[list[Setup]]:
    """Yield lists of setups that differ only in the micro-batch, the smallest first."""
    sizes = (fixed["micro_batch"],) if "micro_batch" in fixed else MICRO_BATCHES
    for degrees in _degrees(start, fixed):
        for sharding in _shardings(start, fixed, max(degrees.values()) > 1):
            for recompute in (fixed["recompute"],) if "recompute" in fixed else RECOMPUTE:
                choice = {**fixed, **degrees, **sharding, "recompute": recompute}
                growing = [_setup(start, {**choice, "micro_batch": size}, global_batch) for size in sizes]
                if growing := [setup for setup in growing if setup]:
                    yield growing


def _degrees(start: Setup, fixed: dict) -> Iterator[dict[str, int]]:
    tensor = [degree for degree in TENSOR if degree <= start.machine.gpus_per_node]
    context = CONTEXT if start.strategy.seq_len >= LONG else (start.strategy.context,)
    tried = {"tensor": tensor, "pipeline": PIPELINE, "context": context}
    tried |= {"expert": EXPERT} if start.shape.experts else {}
    tried |= {name: (fixed[name],) for name in tried if name in fixed}
    for values in product(*tried.values()):
        yield dict(zip(tried, values, strict=True))


def _shardings(start: Setup, fixed: dict, model_parallel: bool) -> Iterator[dict]:
    """Yield shardings over all ranks and, without model parallelism, over the ranks of one node."""
    shardings = WITH_MODEL_PARALLEL if model_parallel else SHARDINGS
    for sharding in (fixed["sharding"],) if "sharding" in fixed else shardings:
        bucket_view = {"gradient_as_bucket_view": True} if sharding.startswith("DDP") else {}
        yield {"sharding": sharding, **bucket_view, **fixed}
        may_be_hybrid = start.nodes > 1 and not model_parallel and "shard_size" not in fixed
        if sharding in ("SHARD_GRAD_OP", "FULL_SHARD") and may_be_hybrid:
            yield {"sharding": sharding, "shard_size": start.machine.gpus_per_node, **fixed}


def _setup(start: Setup, choice: dict, global_batch: int | None) -> Setup | None:
    """Return the setup; None if its choices don't go together, or it can't have the global batch."""
    try:
        setup = replace(start, strategy=replace(start.strategy, **choice))
    except ValueError:
        return None
    s = setup.strategy
    if global_batch is None:
        return setup
    accumulation, rest = divmod(global_batch, s.micro_batch * setup.data_ranks // s.context)
    if rest or not accumulation or accumulation != choice.get("accumulation", accumulation):
        return None
    return replace(setup, strategy=replace(s, accumulation=accumulation))


def fewest_gpus(model: str | Shape, machine: str | Machine, *, gpus: int, **fixed) -> int | None:
    """Double the GPUs until a plan surely fits: the one of the search's that needs least memory. None: none does."""
    smallest = {"sharding": "FULL_SHARD", "recompute": "full", "micro_batch": 1} | fixed
    for times in range(1, 17):
        try:
            setup = setup_of(model, machine, gpus << times, **smallest)
        except ValueError:
            return None
        if Plan(setup, memory_plan(setup, every_block=False), None).fits == "yes":
            return setup.world_size
    return None


def nearest_global_batch(model: str | Shape, machine: str | Machine, *, gpus: int, global_batch: int, **fixed) -> int:
    """Return the nearest number of sequences a step that the given degrees and micro-batch allow."""
    setup = setup_of(model, machine, gpus, **fixed)
    s = setup.strategy
    unit = s.micro_batch * fixed.get("accumulation", 1) * setup.data_ranks // s.context
    return max(1, round(global_batch / unit)) * unit
