"""One training job in several systems, for lesson 14b: what a rank holds and sends, and which losses it sees.

A system is a function that wraps a model and returns an Engine. Model, optimizer and batches are the same for all.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import nn

from shardbench.deepspeed_engine import deepspeed
from shardbench.engines import OURS, TORCH, Engine, Library, data_parallel, fsdp1, fsdp2, local_batch, zero_1
from shardcourse.experiments.engines import all_ranks
from shardcourse.repository import ROOT
from shardlab import launch, local_device
from shardlab.model import Transformer, preset
from shardplan.formulas import Expected, units_of
from shardplan.sharding_evidence import probe

BENCHMARKS = ROOT / "lib" / "benchmarks"
MODEL, MICRO_BATCH, SEQ_LEN, STEPS = "3M", 2, 64, 3
STATES = ("parameters", "gradients", "optimizer_states")
Build = Callable[[nn.Module], Engine]
System = tuple[Build, str]  # and the strategy whose formulas hold for it


@dataclass(frozen=True)
class Found:
    """Bytes that a rank holds between two steps, with gradients, and sends in a step; the mean losses."""

    held_bytes: int
    sent_bytes: float
    parameter_kind: str  # name of the class of the wrapped model's first parameter
    losses: tuple[float, ...]


def _fsdp2(library: Library, model: nn.Module) -> Engine:
    return fsdp2(library, model, mesh=all_ranks())


def installed(name: str) -> bool:
    return find_spec(name) is not None


def systems(with_accelerate: Build) -> dict[str, System]:
    """Return the systems that are installed here, by name."""
    found: dict[str, System] = {
        "DDP": (partial(data_parallel, TORCH), "DDP"),
        "DDP + ZeRO-1": (partial(zero_1, TORCH), "DDP+ZERO_1"),
        "FSDP1": (partial(fsdp1, TORCH), "FULL_SHARD"),
        "FSDP2": (partial(_fsdp2, TORCH), "FULL_SHARD"),
        "our FSDP2": (partial(_fsdp2, OURS), "FULL_SHARD"),
    }
    if installed("accelerate"):
        found["Accelerate"] = (with_accelerate, "FULL_SHARD")
    if installed("deepspeed"):
        found["DeepSpeed 3"] = (partial(deepspeed, stage=3, micro_batch=MICRO_BATCH), "FULL_SHARD")
    return found


def expected(all_systems: Mapping[str, System], n: int) -> dict[str, tuple[int, float]]:
    """Return the (held, sent) bytes of each system on `n` ranks, by its strategy's formulas."""
    with torch.device("meta"):
        model = Transformer(preset(MODEL))
    formulas = {
        name: Expected(strategy, units_of(model, model.blocks), n) for name, (_, strategy) in all_systems.items()
    }
    return {name: (sum(getattr(x, part) for part in STATES), x.wire_bytes) for name, x in formulas.items()}


def compare(all_systems: Mapping[str, System], n: int, device: str) -> dict[str, Found]:
    """Train each system for a few steps on `n` ranks; return what rank 0 holds, sends and sees."""
    builds = {name: build for name, (build, _) in all_systems.items()}
    return launch(_compare, n, builds, device=device, stream=False, timeout_s=300)[0]


def new_model() -> Transformer:
    """Return the seeded model, on the CPU."""
    torch.manual_seed(0)
    return Transformer(preset(MODEL))


def wrapped(build: Build) -> Engine:
    """Return the model on this rank's device, wrapped. Call it on every rank."""
    return build(new_model().to(local_device()))


def _compare(builds: Mapping[str, Build]) -> dict[str, Found]:
    return {name: _found(build) for name, build in builds.items()}


def _found(build: Build) -> Found:
    engine, data = wrapped(build), local_batch(0, MICRO_BATCH, SEQ_LEN)
    kind = type(next(engine.module.parameters())).__name__
    seen = probe(engine.module, engine.optimizer, lambda: engine.module(*data), **engine.parts)
    held = {part: seen.held["backward" if part == "gradients" else "between"][part] for part in STATES}
    engine = wrapped(build)
    losses = tuple(_mean(engine.train_step(*local_batch(i, MICRO_BATCH, SEQ_LEN))) for i in range(STEPS))
    return Found(sum(held.values()), seen.wire_bytes, kind, losses)


def _mean(loss: torch.Tensor) -> float:
    dist.all_reduce(loss)
    return round(loss.item() / dist.get_world_size(), 4)


def deepspeed_record() -> tuple[str, list[tuple[str, float, float, float]]]:
    """Return where DeepSpeed was last measured, and (stage, held MiB, sent MiB, difference of losses) of its stages."""
    kept = json.loads(max(BENCHMARKS.glob("parallel-cpu-*.json")).read_text())
    where = f"{kept['environment']['date']}, {kept['world_size']} ranks, model {kept['model']}"
    rows = [
        (r["engine"], r["theirs"]["held_bytes"] / 2**20, r["theirs"]["wire_bytes"] / 2**20, r["max_loss_difference"])
        for r in kept["deepspeed"]
    ]
    return where, rows
