"""Every figure of `shardcourse.figures`, drawn from small real runs and real plans: for tests, and to look at."""

from functools import cache, partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from shardcourse import figures
from shardcourse.experiments.scaling import Scaling, scaling
from shardcourse.figures.style import LessonFigure
from shardlab import launch, point_to_point_collectives
from shardlab.ddp import DDP, assign_buckets
from shardlab.fsdp import fully_shard as our_fully_shard
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.step_time import time_step
from shardlab.model import ModelConfig, Transformer
from shardlab.text_batches import batch
from shardplan.api import figures_of, setup_of
from shardplan.formulas import Expected, units_of
from shardplan.search.strategies import search
from shardplan.strategy import Strategy
from shardsim import simulated
from shardsim.bucket_overlap import finish_time
from shardsim.pipeline_schedules import gpipe, interleaved, one_f_one_b, pipeline_timelines
from shardsim.slept_computation import sleep_in
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

CONFIG = ModelConfig(vocab_size=256, dim=64, n_layers=4, n_heads=4, n_kv_heads=2, hidden_dim=160, max_seq_len=64)
N = 4
BANDWIDTH, LATENCY_S = 60e6, 1e-3
LINK = "60 MB/s, 1 ms"
FORWARD_S = 0.006  # of a block; its backward takes twice that
ALONE_S = 3 * FORWARD_S * CONFIG.n_layers  # a step without a network
NAMES = (
    "memory_stacks",
    "memory_stacks_predicted",
    "memory_over_step",
    "memory_over_step_by_time",
    "memory_beside",
    "timelines_of_ranks",
    "timelines_of_schedules",
    "laps_in_turn",
    "bucket_curve",
    "chunks_over_hops",
    "slices",
    "curves_beside_points",
    "scaling_efficiency",
    "pipeline_schedules",
    "planned_memory",
    "planned_stacks",
    "step_parts",
    "speed_against_memory",
    "predicted_beside_measured",
)
ON_A_NETWORK = {
    "timelines_of_ranks",
    "timelines_of_schedules",
    "laps_in_turn",
    "bucket_curve",
    "curves_beside_points",
    "scaling_efficiency",
    "predicted_beside_measured",
}
CAPS_MB = (0.02, 0.1, 0.25, 0.5, 2)


def build(slept: bool = False, times: float = 1.0) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for i, block in enumerate(model.blocks if slept else ()):
        sleep_in(block, FORWARD_S, times=times, name=f"blocks.{i}")
    return model


def samples(sequences: int = 1, seq_len: int = 8):
    world_size = dist.get_world_size()
    return batch(0, 0, dist.get_rank(), world_size, global_batch=sequences * world_size, seq_len=seq_len)


def ddp(model: Transformer, bucket_cap_mb: float = 25) -> DDP:
    return DDP(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)


def fsdp(model: Transformer, prefetch: int = 0) -> Transformer:
    for block in model.blocks:
        our_fully_shard(block)
    for block, following in zip(model.blocks, model.blocks[1:], strict=False):
        if prefetch:
            block.set_modules_to_forward_prefetch([following])
    return our_fully_shard(model)


def sharded(model: Transformer) -> Transformer:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


# ------------------------------------------------------------------------------------------------------------ on ranks


def track(wrap) -> tuple[dict, list, list]:
    """Of a second step, for the first makes the optimizer's states: what the peak consists of, and its history."""
    model = wrap(build())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        inputs = samples(2, 32)
        with MemoryTracker(model, optimizer) as tracker:
            model(*inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
    return tracker.peak.by_category(), tracker.timeline(), tracker.phases()


def memories() -> dict[str, tuple[dict, list, list]]:
    return {"DDP": track(ddp), "FULL_SHARD": track(sharded)}


def one_step(wrap, slow_rank: int | None = None) -> Timeline:
    model = wrap(build(slept=True, times=2.0 if dist.get_rank() == slow_rank else 1.0))
    inputs = samples()
    for _ in range(2):
        dist.barrier()
        with record_timeline(model) as recording:
            model(*inputs).backward()
    return recording.timeline


def steps() -> dict[str, Timeline]:
    return {
        "DDP, one bucket": one_step(ddp),
        "DDP, small buckets": one_step(partial(ddp, bucket_cap_mb=0.25)),
        "FSDP, no prefetch": one_step(fsdp),
        "FSDP, prefetch": one_step(partial(fsdp, prefetch=1)),
        "slow rank": one_step(partial(ddp, bucket_cap_mb=0.25), slow_rank=2),
    }


def step_times() -> dict[float, list[float]]:
    found = {}
    for cap in CAPS_MB:
        model, inputs = ddp(build(slept=True), cap), samples()
        found[cap] = [time_step(lambda m=model, x=inputs: m(*x).backward()) for _ in range(5)][2:]
    return found


def make_step(sequences: int):
    model, inputs = ddp(build(slept=True), 0.25), samples()
    return lambda: model(*inputs).backward()


# -------------------------------------------------------------------------------------------------------- what is drawn


def expected(strategy: str) -> dict[str, int]:
    model = Transformer(CONFIG)
    found = Expected(strategy, units_of(model, model.blocks), N)
    held = {name: getattr(found, name) for name in ("parameters", "gradients", "optimizer_states")}
    return held | {"unsharded": found.unsharded_peak}


def predicted_step_s(cap_mb: float, n: int = N) -> float:
    params = list(Transformer(CONFIG).named_parameters())
    plan = [len(bucket) for bucket in assign_buckets([p for _, p in params], *[int(cap_mb * 2**20)] * 2)]
    sizes = [p.nbytes for _, p in reversed(params)]
    block_done = {f"blocks.{i}": 2 * FORWARD_S * (CONFIG.n_layers - i) for i in range(CONFIG.n_layers)}
    ready = [block_done.get(".".join(name.split(".")[:2]), 0.0) for name, _ in reversed(params)]
    ready[-1] = max(ready)  # the embedding's gradient comes last
    return FORWARD_S * CONFIG.n_layers + finish_time(plan, sizes, ready, n, LATENCY_S, BANDWIDTH)


@cache
def examples(quick: bool = False) -> dict[str, LessonFigure]:
    """By name, in the order of NAMES. `quick`: without those of a simulated network, which take ten seconds."""
    found = memory_figures(launch(memories, N, device="cpu")) | planned_figures()
    found |= {
        "chunks_over_hops": chunks_picture(),
        "pipeline_schedules": pipeline_picture(),
        "slices": slices_picture(),
    }
    if not quick:
        times = launch(step_times, N, network=simulated(LINK))[0]
        weak = scaling(make_step, 1, seq_len=8, network=simulated(LINK), rounds=3, steps=3)
        found |= timeline_figures(launch(steps, N, network=simulated(LINK))) | {
            "laps_in_turn": laps_picture(times),
            "bucket_curve": bucket_picture(times),
            "curves_beside_points": curves_picture(times),
            "scaling_efficiency": scaling_picture(weak),
            "predicted_beside_measured": beside_picture(times),
        }
    return {name: found[name] for name in NAMES if name in found}


def memory_figures(ranks: list[dict]) -> dict[str, LessonFigure]:
    _, timeline, phases = ranks[0]["FULL_SHARD"]
    predicted = {strategy: expected(strategy) for strategy in ranks[0]}
    measured = {strategy: [rank[strategy][0] for rank in ranks] for strategy in ranks[0]}
    budget = "budget: 4 MiB", 4 * 2**20
    return {
        "memory_stacks": figures.memory_stacks(predicted, measured, title="What each rank holds when it holds most"),
        "memory_stacks_predicted": figures.memory_stacks(predicted, {}, budget=budget),
        "memory_over_step": figures.memory_over_step(timeline, phases, title="FULL_SHARD: rank 0 in one step"),
        "memory_over_step_by_time": figures.memory_over_step(timeline, phases, by_time=True),
        "memory_beside": figures.memory_beside(
            {name: [held for _, held in ranks[0][name][1]] for name in ("FULL_SHARD", "DDP")},
            budget=("allowed", budget[1]),
            title="Sharded, and not",
        ),
    }


def timeline_figures(ranks: list[dict[str, Timeline]]) -> dict[str, LessonFigure]:
    by_rank = {f"rank {i}": rank.pop("slow rank") for i, rank in enumerate(ranks)}
    fsdps = {name: step for name, step in ranks[0].items() if name.startswith("FSDP")}
    return {
        "timelines_of_ranks": figures.timelines(by_rank, title="Rank 2 is slow, and all of them finish late"),
        "timelines_of_schedules": figures.timelines(fsdps, one_clock=False, title="FSDP, with and without prefetching"),
    }


def halfway() -> list:
    """The ranks whose numbers are in each chunk, before and after a reduce_scatter."""
    n, rank = dist.get_world_size(), dist.get_rank()
    before = torch.full((n,), 10**rank)
    after, mine = before.clone(), before[:1].clone()
    point_to_point_collectives.reduce_scatter_tensor(mine, before)
    after[rank] = mine
    return [[[r for r in range(n) if value // 10**r % 10] for value in x.tolist()] for x in (before, after)]


def chunks_picture() -> LessonFigure:
    before, after = zip(*launch(halfway, N, device="cpu"), strict=True)
    hops = {"before": before, "after a reduce_scatter": after}
    return figures.chunks_over_hops(hops, title="Whose numbers are in which chunk")


def slices_picture() -> LessonFigure:
    held = [(f"DTensor: a shard\nrows {2 * r}:{2 * r + 2}, 64 bytes", ((r / N, (r + 1) / N), (0, 1))) for r in range(N)]
    return figures.slices([*held, ("Parameter: whole\n[8, 8], 256 bytes", ((0, 1), (0, 1)))], "Who holds a weight now")


def pipeline_picture() -> LessonFigure:
    """Both kinds of rows by arithmetic: what is measured comes in the same records."""
    orders = {"GPipe": gpipe, "1F1B": one_f_one_b, "interleaved": partial(interleaved, v=2)}
    costs = {"GPipe": 0.02, "1F1B": 0.02, "interleaved": 0.01}
    ranks = {
        name: pipeline_timelines([order(rank, N, 2 * N) for rank in range(N)], costs[name], 2 * costs[name])
        for name, order in orders.items()
    }
    slower = {"1F1B": pipeline_timelines([one_f_one_b(rank, N, 2 * N) for rank in range(N)], 0.021, 0.043)}
    return figures.pipeline_schedules(slower, ranks, title="Three schedules of a pipeline")


def bucket_picture(times: dict[float, list[float]]) -> LessonFigure:
    levels = {"computing alone": ALONE_S, "computing, then one message for all": predicted_step_s(1000)}
    return figures.bucket_curve(
        {2 ** (k / 16): predicted_step_s(2 ** (k / 16)) for k in range(-92, 20)},
        {"shardlab DDP": times},
        levels_s=levels,
        marks_mb={"25 MiB in the full-size job": 0.25},
        guesses_ms={0.1: 90.0, 2: None},
        full_size=100,
    )


def laps_picture(times: dict[float, list[float]]) -> LessonFigure:
    laps = {f"buckets of {cap} MiB": times[cap] for cap in (0.25, 2)}
    return figures.laps_in_turn(laps, title="Measured in turn")


def curves_picture(times: dict[float, list[float]]) -> LessonFigure:
    curves = (
        {"predicted": {cap: predicted_step_s(cap) * 1e3 for cap in CAPS_MB}},
        {"measured": {cap: min(of_cap) * 1e3 for cap, of_cap in times.items()}},
    )
    levels = {"computing alone": ALONE_S * 1e3}
    return figures.curves_beside_points(*curves, "bucket, MiB", "step, ms", levels=levels, log_x=True)


def beside_picture(times: dict[float, list[float]]) -> LessonFigure:
    predicted = {f"{cap} MiB": predicted_step_s(cap) for cap in CAPS_MB}
    measured = {f"{cap} MiB": min(of_cap) for cap, of_cap in times.items()}
    return figures.predicted_beside_measured(predicted, measured, "step, s", title="Buckets")


def scaling_picture(weak: Scaling) -> LessonFigure:
    predicted = {n: ALONE_S / predicted_step_s(0.25, n) for n in (1, 2, 4)}
    return figures.scaling_efficiency({"weak scaling": weak.rows}, predicted={"weak scaling": predicted})


# ---------------------------------------------------------------------------------------------------- what was planned


def planned_figures() -> dict[str, LessonFigure]:
    job = {"model": "8B", "machine": "dgx-h100", "seq_len": 8192}
    plans = {s: figures_of(setup_of(world_size=16, sharding=s, **job)) for s in ("DDP", "ZERO_1", "FULL_SHARD")}
    fsdp = plans["FULL_SHARD"]
    capacity = fsdp.setup.machine.gpu.name, fsdp.setup.machine.memory_bytes
    memory = {name: plan.memory for name, plan in plans.items()}
    return {
        "planned_memory": figures.planned_memory(fsdp.memory, capacity, title="8B on 16 GPUs, FULL_SHARD"),
        "planned_stacks": figures.planned_stacks(memory, capacity, title="8B on 16 GPUs"),
        "step_parts": figures.step_parts(
            {name: plan.speed.parts_s for name, plan in plans.items()}, title="8B on 16 GPUs"
        ),
        "speed_against_memory": search_picture(),
    }


def search_picture() -> LessonFigure:
    found = search("8B", "dgx-h100", gpus=16, seq_len=8192, tensor=1, pipeline=1, context=1)
    names = [front_name(plan.setup.strategy) for plan in found.front[:6]]
    return figures.speed_against_memory(found.fitting, found.front, names, title="8B on 16 GPUs: what fits")


def front_name(s: Strategy) -> str:
    return f"{s.sharding}, {s.recompute}, {s.micro_batch}"
