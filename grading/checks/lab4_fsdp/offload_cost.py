"""Judge the predicted cost of offloading in a step, on drawn models and links: bytes each way, and seconds."""

import random
from dataclasses import asdict
from math import inf, isfinite
from statistics import mean

from grading.checks.lab4_fsdp.ready_made_answers import in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.model import ModelConfig

INSTANCES = 6
CLOSE = 1e-7  # relative: rounding gives 1e-15, a last norm that is forgotten 3.8e-7 or more
ADAMW_BYTES = 28  # host memory traffic a parameter: p, g, m, v read and p, m, v written, in float32
NAMES = ("to_device_bytes", "to_host_bytes", "seconds")


def judge(s: Session, check: str, points: float) -> Verdict:
    instances = _instances(s.seed)
    reply = s.order(check, "price", world_size=1, device="cpu", instances=instances)[0]
    replies = reply["prices"]
    if used := in_words([reply]):
        return Verdict(check, 0, points, used)
    if missing := sorted({name for r in replies for name in NAMES if name not in r}):
        return Verdict(check, 0, points, f"the price has no {missing[0]!r}.")
    truths = [truth(**i) for i in instances]
    wrong = {name: max(_off(r[name], t[name]) for r, t in zip(replies, truths, strict=True)) for name in NAMES}
    figures = {f"{name}, relative error": (f"{error:.2g}", f"{CLOSE:g}") for name, error in wrong.items()}
    right = [name for name in NAMES if wrong[name] <= CLOSE]
    if len(right) == len(NAMES):
        return Verdict(check, points, points, "bytes each way and seconds, on every model and link.", "", figures)
    name = next(name for name in NAMES if name not in right)
    cause = _cause(name, replies, instances, truths)
    return Verdict(check, points * len(right) / len(NAMES), points, cause, "", figures)


def copied_bytes(config: ModelConfig, world_size: int) -> tuple[float, float]:
    """Return a rank's bytes to the device and to the host, in float32, with one unit a block.

    The root's shard is copied once a step, because the root stays gathered after forward.
    """
    share = 4 * config.n_params / world_size
    return 2 * share - 4 * root_params(config) / world_size, share


def root_params(config: ModelConfig) -> int:
    """Return the parameters of the embedding, last norm and output layer."""
    return (1 if config.tied else 2) * config.vocab_size * config.dim + config.dim


def truth(config: dict, world_size: int, link_bytes_per_s: float, host_memory_bytes_per_s: float) -> dict[str, float]:
    c = ModelConfig(**config)
    to_device, to_host = copied_bytes(c, world_size)
    update_s = ADAMW_BYTES * c.n_params / host_memory_bytes_per_s  # all ranks' shares go through one memory
    return dict(zip(NAMES, (to_device, to_host, (to_device + to_host) / link_bytes_per_s + update_s), strict=True))


def _instances(seed: int) -> list[dict]:
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


def _cause(name: str, replies: list[dict], instances: list[dict], truths: list[dict]) -> str:
    """Name the mistake that explains all instances, if one does; else give the mean ratio."""
    for words, mistaken in _MISTAKES[name].items():
        wrong = [mistaken(i, t) for i, t in zip(instances, truths, strict=True)]
        if max(_off(r[name], w) for r, w in zip(replies, wrong, strict=True)) <= CLOSE:
            return f"{name}: {words}."
    ratio = mean(r[name] / t[name] for r, t in zip(replies, truths, strict=True))
    return f"{name} is {ratio:.7g} times what it should be, on average over {len(instances)} models and links."


def _share(i: dict) -> float:
    return 4 * ModelConfig(**i["config"]).n_params / i["world_size"]


def _link_s(i: dict, t: dict) -> float:
    return (t["to_device_bytes"] + t["to_host_bytes"]) / i["link_bytes_per_s"]


def _update_s(i: dict, t: dict) -> float:
    return t["seconds"] - _link_s(i, t)


_MISTAKES = {
    "to_device_bytes": {
        "shards come in once a step, as if backward did not gather": lambda i, t: _share(i),
        "the root's shards come in twice, and they stay after forward": lambda i, t: 2 * _share(i),
        "the whole model comes in, and a rank brings only its share": lambda i, t: (
            t["to_device_bytes"] * i["world_size"]
        ),
        "both directions in one number": lambda i, t: t["to_device_bytes"] + t["to_host_bytes"],
    },
    "to_host_bytes": {
        "no gradients go out": lambda i, t: 0.0,
        "the whole gradients go out, and a rank holds only its share when they are reduced": lambda i, t: (
            t["to_host_bytes"] * i["world_size"]
        ),
        "as many bytes as come in": lambda i, t: t["to_device_bytes"],
    },
    "seconds": {
        "only the way to the device is counted": lambda i, t: (
            t["to_device_bytes"] / i["link_bytes_per_s"] + _update_s(i, t)
        ),
        "only the way to the host is counted": lambda i, t: (
            t["to_host_bytes"] / i["link_bytes_per_s"] + _update_s(i, t)
        ),
        "the optimizer's update is missing": _link_s,
        "each rank updates as if it had the host's memory to itself": lambda i, t: (
            _link_s(i, t) + _update_s(i, t) / i["world_size"]
        ),
    },
}
