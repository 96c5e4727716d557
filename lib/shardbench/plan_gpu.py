"""The plan compared with one GPU: `max_memory_allocated` and seconds of a step, for models of 125M to 8B parameters.

One rank trains a plain model, and a model under FSDP2. Two ranks share the GPU and communicate over gloo; their seconds
say nothing about a network and are left out. Without a GPU the same code runs on the CPU, with tiny models and a
MemoryTracker instead of the allocator. That tests this file, not the plan of a GPU. Nobody has run it on a GPU yet.
"""

import gc
import time
from collections.abc import Iterable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from rich.console import Console

from shardbench.plan_ranks import WARM_UP_STEPS, batch, build, config_of, peak, step
from shardbench.plan_table import show_bytes, summary, table, words
from shardlab import launch, local_device
from shardlab.model import ModelConfig, preset
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardplan.strategy import Strategy
from shardsim.hardware import GPUS, Gpu
from shardsim.machines import Machine, machine

TINY = ModelConfig(256, 64, 2, 4, 2, 192, 256)
TIMED_STEPS = 7
GOAL_MEMORY, GOAL_TIME = 0.05, 0.15
PLAIN = {"sharding": "NONE", "precision": "bf16-autocast", "optimizer_kernel": "foreach"}
FSDP = {"sharding": "FULL_SHARD", "precision": "bf16-mixed", "optimizer_kernel": "foreach"}


def configurations() -> Iterable[dict]:
    """Yield model, ranks and strategy. The larger models need an 80 GB card; `run` leaves out those that won't fit by
    their plan."""
    for base in (PLAIN, FSDP):
        yield _one("125M", 1, base, seq_len=2048, micro_batch=4)
        yield _one("125M", 1, base, seq_len=2048, micro_batch=8, recompute="full")
        yield _one("1B", 1, base, seq_len=2048, micro_batch=2)
        yield _one("1B", 1, base, seq_len=4096, micro_batch=2, recompute="selective")
        yield _one("1B", 1, base, seq_len=2048, micro_batch=4, accumulation=2, recompute="products")
    yield _one("8B", 1, PLAIN, precision="bf16", optimizer="sgd", seq_len=2048, recompute="full")
    yield _one("8B", 1, PLAIN, precision="bf16", optimizer_kernel="fused", seq_len=4096, recompute="full")
    yield _one("8B", 1, PLAIN, precision="bf16", lora_rank=16, base_4bit=True, seq_len=2048, recompute="full")
    for sharding in ("FULL_SHARD", "SHARD_GRAD_OP"):
        yield _one("125M", 2, FSDP, sharding=sharding, seq_len=2048, micro_batch=4)
        yield _one("1B", 2, FSDP, sharding=sharding, seq_len=2048)
    yield _one("125M", 2, FSDP, sharding="DDP", precision="bf16-autocast", seq_len=2048, micro_batch=4)


def tiny_configurations() -> Iterable[dict]:
    """Yield configurations for a CPU."""
    for base in (PLAIN, FSDP):
        yield _one("tiny", 1, base, seq_len=32, micro_batch=2, recompute="full", optimizer_kernel="forloop")
    yield _one("tiny", 2, FSDP, seq_len=32, optimizer_kernel="forloop")


def _one(model: str, ranks: int, base: dict, **strategy) -> dict:
    return {"model": model, "ranks": ranks, "strategy": base | strategy}


def setup_of(configuration: dict, on: Machine) -> Setup:
    name = configuration["model"]
    shape = Shape.of(name, TINY if name == "tiny" else preset(name))
    return Setup(shape, on, configuration["ranks"], Strategy(**configuration["strategy"]))


def this_machine() -> Machine:
    """Return a machine with this GPU; without a GPU, a dgx-h100.

    Raises LookupError if the table has no such GPU.
    """
    if not torch.cuda.is_available():
        return machine("dgx-h100")
    here = torch.cuda.get_device_properties(0)
    return machine(f"{gpu_named(here.name, here.total_memory)} x 2")


def gpu_named(name: str, memory_bytes: int) -> str:
    """Return the table's name for a driver's "NVIDIA A100-SXM4-80GB": most words in common, then nearest memory."""
    words = set(name.replace(" ", "-").split("-"))

    def likeness(gpu: Gpu) -> tuple[int, float]:
        return len(words & set(gpu.name.split("-"))), -abs(gpu.memory_bytes - memory_bytes)

    best = max(GPUS.values(), key=likeness)
    if not likeness(best)[0]:
        raise LookupError(f"simulate.hardware has no {name}: add it with its data sheet")
    return best.name


def run(only: Iterable[dict] | None = None, device: str | None = None) -> list[dict]:
    """Return a row for each configuration that fits: bytes and seconds, predicted and measured, and their ratios.

    Seconds are None on a CPU and if ranks share the GPU. Raises LookupError for a GPU that is not in the table.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on = this_machine()
    given = only or (configurations() if device == "cuda" else tiny_configurations())
    return [row for configuration in given if (row := _row(configuration, on, device))]


def _row(configuration: dict, on: Machine, device: str) -> dict | None:
    setup, on_gpu = setup_of(configuration, on), device == "cuda"
    plan = memory_plan(setup, on_gpu=on_gpu, every_block=False)
    if on_gpu and configuration["ranks"] * plan.device_bytes[1] > on.memory_bytes:
        return None
    ranks = launch(partial(_measure, setup), setup.world_size, device=device, timeout_s=900)
    measured = max(rank["bytes"] for rank in ranks)
    row = configuration | {
        "device": on.gpu.name if on_gpu else "cpu",
        "predicted_bytes": plan.allocated_bytes,
        "measured_bytes": measured,
        "ratio": plan.allocated_bytes / measured,
        "predicted_where": plan.peak.name,
        "predicted_reserved_bytes": plan.reserved_bytes,
        "measured_reserved_bytes": max((rank["reserved"] for rank in ranks if rank["reserved"]), default=None),
    }
    return row | (_seconds(setup, ranks[0]["seconds"]) if on_gpu and setup.world_size == 1 else _seconds(setup, None))


def _seconds(setup: Setup, measured: float | None) -> dict:
    predicted = speed_plan(setup).step_s if measured else None
    ratio = predicted / measured if measured else None
    return {"predicted_s": predicted, "measured_s": measured, "ratio_s": ratio}


# On a rank


def _measure(setup: Setup) -> dict:
    config_of(setup.shape)
    if local_device().type == "cpu":
        memory = peak(setup)
        return {"bytes": memory.peak_bytes, "reserved": None, "seconds": _time(setup)}
    allocated, reserved = _allocator_peaks(setup)
    return {"bytes": allocated, "reserved": reserved, "seconds": _time(setup)}


def _allocator_peaks(setup: Setup) -> tuple[int, int]:
    """Return peak (allocated, reserved) bytes of the third step, without a tracker, cuBLAS's workspaces included."""
    engine, data = build(setup), batch(setup)
    for _ in range(WARM_UP_STEPS):
        step(setup, engine, *data)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(setup, engine, *data)
    torch.cuda.synchronize()
    dist.barrier()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def _time(setup: Setup) -> float:
    """Return the median seconds of a few steps. Each step waits for the device to finish."""
    gc.collect()  # the previous model's checkpointed blocks are in reference cycles and hold its memory
    engine, data = build(setup), batch(setup)
    seconds = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        began = time.perf_counter()
        step(setup, engine, *data)
        if local_device().type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds[WARM_UP_STEPS:])


# In words


def show(rows: list[dict]) -> None:
    show_bytes("peak on one GPU: closed form / max_memory_allocated, GiB", rows, GOAL_MEMORY, "GiB", {})
    timed = [row for row in rows if row["measured_s"]]
    made = table("seconds of a step on one GPU", ("model", "strategy", "plan", "measured", "ratio"))
    for row in timed:
        seconds = (f"{row[name]:.3f}" for name in ("predicted_s", "measured_s"))
        style = "" if abs(row["ratio_s"] - 1) <= GOAL_TIME else "bold red"
        made.add_row(row["model"], words(row["strategy"]), *seconds, f"{row['ratio_s']:.3f}", style=style)
    made.caption = summary([row["ratio_s"] for row in timed], GOAL_TIME)
    Console(width=max(140, Console().width)).print(made)
