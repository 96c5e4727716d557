"""Drills of one rank: answers that are arithmetic, called by position; what can't be read is said in one line."""

import time
from collections.abc import Mapping
from numbers import Integral

from grading.checks.lab4_fsdp.refused_finished_code import graders_functions
from shardlab.model import ModelConfig


def largest_depth(implementation, instances: list[dict]) -> dict:
    """Return the answers, called by position, what they are, and the seconds that they took together."""
    start = time.monotonic()
    found = [
        implementation(i["budget_bytes"], ModelConfig(**i["config"]), i["micro_batch"], i["seq_len"]) for i in instances
    ]
    seconds = time.monotonic() - start
    for n in found:
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise TypeError(f"largest_ddp_depth must return an int, and returns {_cut(n)}")
    return {"depths": [int(n) for n in found], "seconds": seconds}


def price(implementation, instances: list[dict]) -> dict:
    names = ("world_size", "link_bytes_per_s", "host_memory_bytes_per_s")
    with graders_functions() as finished:
        found = [implementation(ModelConfig(**i["config"]), *(i[name] for name in names)) for i in instances]
    return {"prices": [_numbers("offload_price", each) for each in found], "finished": sorted(finished)}


def efficiency(implementation, tables: list[list[dict]]) -> dict:
    with graders_functions() as finished:
        found = [implementation(runs) for runs in tables]
    return {"efficiencies": [_numbers("efficiency", each) for each in found], "finished": sorted(finished)}


def _numbers(name: str, answer) -> dict[str, float]:
    """Return a dict of numbers with its keys as text; TypeError in one line if it is none."""
    if not isinstance(answer, Mapping):
        raise TypeError(f"{name} must return a dict, and returns {_cut(answer)}")
    found = {}
    for key, value in answer.items():
        try:
            found[str(key)] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name} must return numbers, and {key!r:.40} is {_cut(value)}") from None
    return found


def _cut(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
