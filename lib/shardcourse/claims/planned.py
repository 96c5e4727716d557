"""Jobs to plan, from a claim's arguments. An argument that is a list gives one job for each of its values."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from shardplan.api import setup_of
from shardplan.planned_job import Setup

PRECISIONS = ["fp32", "bf16-master", "bf16"]  # 4+4+8, 2+2+12 and 2+2+4 bytes a parameter with AdamW


def setups(model, machine, gpus, **strategy) -> Iterator[tuple[str, Setup]]:
    """Yield (words, job). Words tell jobs apart: "seq_len=2048, recompute=full"; a single job is "as planned"."""
    choices = {"model": model, "machine": machine, "gpus": gpus, **strategy}
    open_choices = {name: values for name, values in choices.items() if isinstance(values, list)}
    for values in product(*open_choices.values()):
        chosen = dict(zip(open_choices, values, strict=True))
        when = ", ".join(_words(name, value) for name, value in chosen.items()) or "as planned"
        fixed = {**choices, **chosen}
        yield when, setup_of(fixed.pop("model"), fixed.pop("machine"), fixed.pop("gpus"), **fixed)


def in_each_node(setup: Setup) -> Setup:
    """Return the same job with a copy of the model in each node."""
    return replace(setup, strategy=replace(setup.strategy, shard_size=setup.machine.gpus_per_node))


def _words(name: str, value) -> str:
    if name in ("model", "machine", "precision", "sharding"):
        return str(value)
    return f"{value} GPU{'s' * (value > 1)}" if name == "gpus" else f"{name}={value}"
