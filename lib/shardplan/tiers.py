"""Choose what each GPU tier trains, and write the table that `shardlab.tier` reads: `python -m shardplan.tiers`.

A tier is a number of GPUs and the smallest card that it is for. Its model is the first of MODELS with which all
programs of lab 4 fit on that card. They need the most memory of all that the course runs: the other labs' models are
smaller, and lessons train the tier's model at most as lab 4's first program does.

All programs train in float32: lab 4 compares losses, and lab 5 asks for bf16 by name. So a tier does not depend on the
card's 16-bit dtype. (A card below sm_80 emulates bf16. Results and bytes are the same, and it takes longer.)
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from shardlab import tier as read_by
from shardlab.model import ModelConfig, preset
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.memory.allocator import CONTEXT_BYTES, WORKSPACES_BYTES
from shardplan.planned_job import Setup
from shardplan.records import MemoryPlan
from shardplan.shape import Shape
from shardsim.hardware import GPUS

MIB = 1 << 20
SPARE = 0.05  # of a card's memory, beyond the allocator's largest reserve
# Room around a budget: right answers stay so far below it, and the usual wrong ones need so much more.
FITS, FITS_TWICE_AS_DEEP, ONE_UNIT, KEPT = 0.95, 0.9, 1.05, 1.2
NARROWEST = 1.05  # the highest possible budget over the lowest


@dataclass(frozen=True)
class Place:
    """A number of GPUs, the ranks on them, and the smallest card that the tier is for."""

    gpus: int
    ranks: int
    card: str

    @property
    def ranks_per_gpu(self) -> int:
        return self.ranks // self.gpus


@dataclass(frozen=True)
class Model:
    """A tier's training: a preset, and a rank's batch."""

    preset: str
    micro_batch: int
    seq_len: int

    @property
    def config(self) -> ModelConfig:
        return preset(self.preset)


PLACES = {
    "gpu1": Place(1, 4, "T4"),  # the ranks share the GPU, and send over gloo
    "gpu2": Place(2, 2, "T4"),
    "gpu4-16gb": Place(4, 4, "T4"),
    "gpu4": Place(4, 4, "A100-40GB"),
    "gpu8-16gb": Place(8, 8, "T4"),
    "gpu8": Place(8, 8, "A100-40GB"),
}
MODELS = (Model("1B", 2, 2048), Model("1B", 1, 2048), Model("125M", 4, 512), Model("60M", 2, 512))
# lab 4: the answer and the reference of each part, without and with twice the depth
PROGRAMS = {
    "fsdp": {},
    "one unit": {"wrap": "whole"},
    "twice as deep": {"depth": 2},
    "twice as deep, checkpointed": {"depth": 2, "recompute": "full"},
}


def setup(place: Place, model: Model, *, depth: int = 1, card: str = "", **strategy) -> Setup:
    """Make the setup of a program of lab 4. `card`: another one than the place's smallest."""
    shape = Shape.of(model.preset, replace(model.config, n_layers=depth * model.config.n_layers))
    sizes = {"micro_batch": model.micro_batch, "seq_len": model.seq_len, "precision": "fp32"}
    return setup_of(shape, f"{card or place.card} x {place.ranks}", place.ranks, **sizes | strategy)


@cache
def _planned(name: str, model: Model, program: str) -> MemoryPlan:
    return memory_plan(setup(PLACES[name], model, **PROGRAMS[program]), every_block=False)


def gpu_bytes(place: Place, plan: MemoryPlan) -> float:
    """Return the bytes of one GPU with its ranks and the notebook's own context, at the allocator's largest reserve."""
    context = CONTEXT_BYTES + WORKSPACES_BYTES  # gloo has no buffers on the GPU
    if place.ranks_per_gpu == 1:
        context = plan.context_bytes
    return place.ranks_per_gpu * (plan.reserved_bytes[1] + context) + CONTEXT_BYTES


def needed_bytes(name: str, model: Model) -> float:
    """Return the memory that each GPU must have for lab 4's largest right program or reference.

    One unit is no right answer. A rank also holds the whole model before it is sharded.
    """
    place = PLACES[name]
    whole = place.ranks_per_gpu * 4 * setup(place, model, depth=2).shape.n_params * (1 + 1 / place.ranks)
    plans = (_planned(name, model, program) for program in PROGRAMS if program != "one unit")
    return max(whole, *(gpu_bytes(place, plan) for plan in plans)) / (1 - SPARE)


def budget_range(name: str, model: Model) -> tuple[float, float]:
    """Return the lowest and the highest budget of a rank, in bytes, that tells right answers from wrong ones."""
    peak = {program: _planned(name, model, program).allocated_bytes for program in PROGRAMS}
    low = max(peak["fsdp"] / FITS, peak["twice as deep, checkpointed"] / FITS_TWICE_AS_DEEP)
    return low, min(peak["one unit"] / ONE_UNIT, peak["twice as deep"] / KEPT)


def chosen(name: str) -> Model:
    """Return the first model that fits on the tier's smallest card and has room for a budget."""
    return next(model for model in MODELS if _suits(name, model))


def _suits(name: str, model: Model) -> bool:
    low, high = budget_range(name, model)
    return high >= NARROWEST * low and needed_bytes(name, model) <= GPUS[PLACES[name].card].memory_bytes


def table() -> dict:
    """Return the table of GPU tiers, from small to large."""
    return {"written by": "python -m shardplan.tiers", "tiers": dict(_rows())}


def _rows() -> Iterator[tuple[str, dict]]:
    for name, place in PLACES.items():
        model = chosen(name)
        low, high = budget_range(name, model)
        yield (
            name,
            {
                "gpus": place.gpus,
                "world_size": place.ranks,
                "model": model.preset,
                "micro_batch": model.micro_batch,
                "seq_len": model.seq_len,
                "budget_mib": round((low * high) ** 0.5 / MIB),
                "memory_mib": round(needed_bytes(name, model) / MIB),
            },
        )


if __name__ == "__main__":
    file = Path(read_by.__file__).with_name(read_by.TABLE)
    file.write_text(json.dumps(table(), indent=1) + "\n")
