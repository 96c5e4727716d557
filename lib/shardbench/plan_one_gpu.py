"""The planner compared with one whole GPU: peak memory and seconds of a step, of models up to a billion parameters.

`plan_here` trains what the tier trains, on ranks that may share a GPU. Here one rank has the GPU to itself, so that the
seconds mean something, and the models are large enough to keep it busy. What doesn't fit on the card is left out.
"""

import gc
import statistics

import torch

from shardbench import environment
from shardbench.plan_ranks import batch, build, gpu_peak, step
from shardlab import launch
from shardlab.measure.step_time import time_step
from shardlab.model import preset
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardsim.hardware import GPUS

TIMED_STEPS = 6
ROWS: tuple[dict, ...] = (
    {"model": "125M", "precision": "fp32", "micro_batch": 8, "seq_len": 1024},
    {"model": "125M", "precision": "bf16-autocast", "micro_batch": 8, "seq_len": 2048},
    {"model": "1B", "precision": "bf16-autocast", "micro_batch": 2, "seq_len": 2048},
    {"model": "1B", "precision": "bf16-autocast", "micro_batch": 4, "seq_len": 2048, "recompute": "full"},
    {"model": "1B", "precision": "bf16-autocast", "micro_batch": 2, "seq_len": 2048, "recompute": "products"},
    {"model": "1B", "precision": "bf16", "micro_batch": 4, "seq_len": 2048, "optimizer_kernel": "fused"},
    {"model": "1B", "precision": "bf16", "micro_batch": 1, "seq_len": 8192, "optimizer_kernel": "fused"},
    {"model": "1B", "precision": "bf16-mixed", "micro_batch": 4, "seq_len": 2048, "recompute": "full"}
    | {"sharding": "FULL_SHARD"},
)
DEFAULTS = {"sharding": "NONE", "recompute": "none", "optimizer_kernel": "foreach"}
CHOICES = (*DEFAULTS, "precision", "micro_batch", "seq_len")


def setup_of_row(row: dict, card: str) -> Setup:
    """Return the job of a row of ROWS, or of a record, on one GPU of a card or machine that the planner knows."""
    row = DEFAULTS | row
    return setup_of(Shape.of(row["model"], preset(row["model"])), card, 1, **{name: row[name] for name in CHOICES})


def run() -> dict:
    """Return a row for each of ROWS that fits: planned and measured peak bytes, and seconds of a step.

    Raises ValueError if this machine has no GPU, or one that the planner does not know.
    """
    card, memory_bytes = _card()
    fitting = [r for r in ROWS if memory_plan(setup_of_row(r, card)).device_bytes[0] < memory_bytes]
    setups = [setup_of_row(row, card) for row in fitting]
    measured = launch(_measure, 1, setups, device="cuda", timeout_s=600)[0]
    rows = [
        DEFAULTS | row | _planned(setup) | figures
        for row, setup, figures in zip(fitting, setups, measured, strict=True)
    ]
    return {"benchmark": "plan one gpu", "environment": environment(), "card": card, "rows": rows}


def _card() -> tuple[str, int]:
    if not torch.cuda.is_available():
        raise ValueError("this benchmark needs a GPU, and torch sees none")
    here = torch.cuda.get_device_properties(0)
    for name, gpu in GPUS.items():
        same_memory = abs(gpu.memory_bytes / here.total_memory - 1) < 0.1
        if name.split("-")[0] in here.name and ("PCIe" in name) == ("PCIe" in here.name) and same_memory:
            return f"{name} x 1", here.total_memory
    raise ValueError(f"the planner does not know {here.name} of {here.total_memory / 2**30:.1f} GiB")


def _planned(setup: Setup) -> dict:
    speed = speed_plan(setup)
    return {
        "planned_bytes": memory_plan(setup).max_memory_allocated,
        "planned_s": speed.step_s,
        "planned_range_s": speed.range_s,
    }


def _measure(setups: list[Setup]) -> list[dict]:
    rows = []
    for setup in setups:
        rows.append(_figures(setup))
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def _figures(setup: Setup) -> dict:
    engine, data = build(setup), batch(setup)
    peak, reserved = gpu_peak(setup, engine, data), torch.cuda.max_memory_reserved()
    times = [time_step(lambda: step(setup, engine, *data)) for _ in range(TIMED_STEPS)]
    return {"measured_bytes": peak, "measured_reserved_bytes": reserved, "measured_s": statistics.median(times)}
