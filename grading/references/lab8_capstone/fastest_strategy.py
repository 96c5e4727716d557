"""The reference line: the fastest strategy, by arithmetic, that fits the job's memory.

A strategy is a mesh (how many ranks share one copy of the model), a micro-batch, what is recomputed, what stays
gathered, and when gradients are reduced. The memory comes from the planner's closed form. The time comes from the
schedule of lesson 6 with the costs of lesson 10a. No run was measured for either.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

from grading.checks.lab8_capstone.job import MODEL, RANKS, Job
from shardlab.model import ModelConfig, Transformer
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape
from shardsim.network import Network
from shardsim.step_schedules import Unit, fsdp_step


@dataclass(frozen=True)
class Choice:
    shards: int  # ranks that share one copy
    micro_batch: int  # sequences
    recompute_every: int = 0  # one of so many blocks; 0: none
    reshard: bool = True  # after forward
    reduce_once: bool = True  # once a step, not in every micro-batch


def choices(job: Job) -> list[Choice]:
    """Return all strategies: a copy of the model on each rank, in each node, or over all ranks, with all options."""
    sizes = [n for n in range(1, job.sequences + 1) if job.sequences % n == 0]
    shards = sorted({1, job.network.ranks_per_node, RANKS})
    all_of_them = (Choice(*c) for c in product(shards, sizes, (0, 1, 2), (True, False), (True, False)))
    return [c for c in all_of_them if c.reduce_once or c.micro_batch < job.sequences]


@cache
def best(job: Job) -> Choice:
    """Return the fastest choice that fits."""
    fitting = (c for c in sorted(choices(job), key=lambda c: step_s(job, c)) if fits(job, c))
    return next(fitting)


def fits(job: Job, choice: Choice) -> bool:
    return peak_bytes(job, choice) <= job.memory_bytes


def tokens_per_s(job: Job, choice: Choice) -> float:
    return RANKS * job.sequences * job.seq_len / step_s(job, choice)


def peak_bytes(job: Job, c: Choice) -> float:
    return _peak_bytes(c, job.sequences, job.seq_len)


@cache
def _peak_bytes(c: Choice, sequences: int, seq_len: int) -> float:
    setup = setup_of(
        Shape.of("stand-in", MODEL),
        "dgx-h100",  # any machine will do: only tensors are counted
        RANKS,
        sharding="FULL_SHARD" if c.reshard else "SHARD_GRAD_OP",
        shard_size=None if c.shards == RANKS else c.shards,
        precision="fp32",
        optimizer="momentum",
        optimizer_kernel="forloop",
        seq_len=seq_len,
        micro_batch=c.micro_batch,
        accumulation=sequences // c.micro_batch,
        accumulate_unsharded=c.reduce_once,
        recompute="full" if c.recompute_every else "none",
        recompute_every=c.recompute_every or 1,
    )
    return memory_plan(setup, on_gpu=False).peak.n_bytes


def step_s(job: Job, c: Choice) -> float:
    """Return the seconds of a step: its micro-batches, one after the other. The optimizer's time is taken as 0."""
    n = job.sequences // c.micro_batch
    return sum(_micro_batch_s(job, c, reduces=i == n - 1 or not c.reduce_once) for i in range(n))


def _micro_batch_s(job: Job, c: Choice, reduces: bool) -> float:
    forward_s = job.launch_s + c.micro_batch * job.sequence_s
    *block_bytes, root_bytes = _unit_bytes()
    blocks = []
    for i, n_bytes in enumerate(block_bytes, 1):
        again = bool(c.recompute_every) and i % c.recompute_every == 0
        costs = _costs(job.network, c.shards, n_bytes, reduces)
        blocks.append(Unit(f"blocks.{i}", forward_s, (2 + again) * forward_s, *costs))
    root = Unit("root", 0.0, 0.0, *_costs(job.network, c.shards, root_bytes, reduces))
    return fsdp_step(root, blocks, reshard_after_forward=c.reshard, host_runs_ahead=True).end_s


def _costs(network: Network, shards: int, n_bytes: int, reduces: bool) -> tuple[float, float, float]:
    """Return the seconds of a unit's all_gather, reduce_scatter and all_reduce."""
    gather_s, scatter_s = (
        network.seconds(kind, n_bytes, range(shards)) if shards > 1 else 0.0
        for kind in ("all_gather", "reduce_scatter")
    )
    replicas = range(0, RANKS, shards)
    reduce_s = network.seconds("all_reduce", n_bytes // shards, replicas) if len(replicas) > 1 else 0.0
    reduce_s *= (
        min(shards, network.ranks_per_node) if network.nics_per_node == 1 else 1
    )  # groups that share a card take turns
    return (gather_s, scatter_s, reduce_s) if reduces else (gather_s, 0.0, 0.0)


@cache
def _unit_bytes(config: ModelConfig = MODEL) -> list[int]:
    """Return the bytes of each block's parameters, and last of all others (the root's)."""
    model = Transformer(config)
    blocks = [sum(p.nbytes for p in block.parameters()) for block in model.blocks]
    return [*blocks, sum(p.nbytes for p in model.parameters()) - sum(blocks)]
