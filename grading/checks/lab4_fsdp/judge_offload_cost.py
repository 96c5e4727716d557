"""Judge the predicted cost of offloading in a step, on drawn models and links: bytes each way, and seconds."""

import random
from dataclasses import asdict
from math import inf, isfinite
from statistics import mean

from grading.checks.lab4_fsdp.refused_finished_code import in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.model import ModelConfig

INSTANCES = 6
CLOSE = 1e-7  # relative: rounding gives 1e-15, a last norm that is forgotten 3.8e-7 or more
NAMES = ("to_device_bytes", "to_host_bytes", "seconds")


def judge(s: Session, check: str, points: float) -> Verdict:
    instances = instances_of(s.seed)
    reply = s.order(check, "price", world_size=1, device="cpu", instances=instances)[0]
    replies = reply["prices"]
    if used := in_words([reply]):
        return Verdict(check, 0, points, used)
    if missing := sorted({name for r in replies for name in NAMES if name not in r}):
        return Verdict(check, 0, points, f"the price has no {missing[0]!r}.")
    priced = s.solve("priced", instances)
    truths = priced["right"]
    wrong = {name: max(_off(r[name], t[name]) for r, t in zip(replies, truths, strict=True)) for name in NAMES}
    figures = {f"{name}, relative error": (f"{error:.2g}", f"{CLOSE:g}") for name, error in wrong.items()}
    right = [name for name in NAMES if wrong[name] <= CLOSE]
    if len(right) == len(NAMES):
        return Verdict(check, points, points, "bytes each way and seconds, on every model and link.", "", figures)
    name = next(name for name in NAMES if name not in right)
    cause = _cause(name, replies, truths, priced["mistakes"][name])
    return Verdict(check, points * len(right) / len(NAMES), points, cause, "", figures)


def instances_of(seed: int) -> list[dict]:
    """Draw models and links. Each number that a price depends on takes all of its values."""
    draw = random.Random(seed)
    of_each = {
        "vocab_size": (1024, 32_000, 128_000),
        "dim": (512, 1024, 2048),
        "n_kv_heads": (4, 8, 16),
        "times": (2, 3, 4),  # the hidden width, in widths
        "world_size": (2, 4, 8),
        "link_bytes_per_s": (12e9, 25e9, 50e9),
        "host_memory_bytes_per_s": (100e9, 200e9, 400e9),
    }
    drawn = {name: draw.sample(values * (INSTANCES // len(values)), INSTANCES) for name, values in of_each.items()}
    return [
        _instance(draw.randint(4, 40), **{name: values[i] for name, values in drawn.items()}) for i in range(INSTANCES)
    ]


def _instance(n_layers: int, vocab_size: int, dim: int, n_kv_heads: int, times: int, **machine) -> dict:
    config = ModelConfig(vocab_size, dim, n_layers, 16, n_kv_heads, times * dim, 2048)
    return {"config": asdict(config)} | machine


def _off(found: float, right: float) -> float:
    """Return the relative error; infinity if the reply is not finite, or not the 0 that a mistake would give."""
    if not isfinite(found) or not right:
        return 0.0 if found == right else inf
    return abs(found / right - 1)


def _cause(name: str, replies: list[dict], truths: list[dict], mistakes: dict[str, list[float]]) -> str:
    """Name the mistake that explains all instances, if one does; else give the mean ratio."""
    for words, wrong in mistakes.items():
        if max(_off(r[name], w) for r, w in zip(replies, wrong, strict=True)) <= CLOSE:
            return f"{name}: {words}."
    ratio = mean(r[name] / t[name] for r, t in zip(replies, truths, strict=True))
    return f"{name} is {ratio:.7g} times what it should be, on average over {len(truths)} models and links."
