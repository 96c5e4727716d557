"""Judge how deep a model DDP still trains within a budget. Models and budgets are drawn.

DDP trains on ranks at the right depth and with one block more; the budget lies between the two peaks.
"""

import random
from collections.abc import Callable
from dataclasses import asdict

from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardlab.model import ModelConfig

INSTANCES = 3
RANKS = 2


def judge(s: Session, check: str, points: float) -> Verdict:
    drawn = [_instance(s.seed * INSTANCES + i) for i in range(INSTANCES)]
    depths = [i.pop("n_layers") for i in drawn]
    measured = [i | {"depths": [n, n + 1]} for i, n in zip(drawn, depths, strict=True)]
    peaks = s.order_reference("ddp_peaks", world_size=RANKS, device="cpu", seed=s.seed, instances=measured)[0]
    asked = [i | {"budget_bytes": (low + high) // 2} for i, (low, high) in zip(drawn, peaks, strict=True)]
    found = s.order(check, "largest_depth", world_size=1, device="cpu", instances=asked)[0]
    off = [n - right for n, right in zip(found, depths, strict=True)]
    figures = {"blocks, beside the largest depth that trains": (", ".join(f"{n:+d}" for n in off), "+0")}
    if not any(off):
        return Verdict(check, points, points, "it is the largest depth that DDP trains, on every budget.", "", figures)
    near = max(map(abs, off)) <= 1
    return Verdict(check, points / 2 if near else 0, points, _cause(off, asked, depths, peaks), "", figures)


def _cause(off: list[int], asked: list[dict], depths: list[int], peaks: list[list[int]]) -> str:
    """Name the mistake that explains all answers, if one does; else describe the worst answer."""
    found = [right + n for right, n in zip(depths, off, strict=True)]
    for words, mistaken in _MISTAKES.items():
        if all(mistaken(*one) == n for one, n in zip(zip(asked, depths, peaks, strict=True), found, strict=True)):
            return f"your depths are those of a job in which {words}."
    i = off.index(max(off, key=abs))
    budget = f"{asked[i]['budget_bytes'] / 2**20:.2f} MiB"
    if off[i] > 0:
        return f"at {found[i]} blocks DDP runs out of {budget}, and trains at {depths[i]}: something is not counted."
    return f"DDP trains {depths[i]} blocks in {budget}, and you say {found[i]}: something is counted twice."


def _states_alone(each_bytes: int) -> Callable[..., int]:
    """Return a function that counts so many bytes for each parameter, and nothing else."""

    def deepest(asked: dict, *_) -> int:
        n = 0
        while each_bytes * ModelConfig(**asked["config"] | {"n_layers": n + 1}).n_params <= asked["budget_bytes"]:
            n += 1
        return n

    return deepest


def _without_buckets(asked: dict, depth: int, peaks: list[int]) -> int:
    """Return the depth if buckets are free. The peak is linear in the depth; buckets take 4 bytes a parameter."""
    n, each = depth, peaks[1] - peaks[0]
    while True:
        buckets = 4 * ModelConfig(**asked["config"] | {"n_layers": n + 1}).n_params
        if peaks[0] + (n + 1 - depth) * each - buckets > asked["budget_bytes"]:
            return n
        n += 1


_MISTAKES = {
    "activations are free, and DDP's buckets": _states_alone(16),
    "activations are free": _states_alone(20),
    "DDP's buckets are free": _without_buckets,
}


def _instance(seed: int) -> dict:
    draw = random.Random(seed)
    dim = draw.choice((64, 96, 128))
    config = ModelConfig(
        vocab_size=draw.choice((256, 512, 1024)),
        dim=dim,
        n_layers=1,
        n_heads=4,
        n_kv_heads=draw.choice((2, 4)),
        hidden_dim=draw.choice((2, 3, 4)) * dim,
        max_seq_len=256,
    )
    # In every draw, one model's activations are negligible compared with its states, and one has many
    shape = {"micro_batch": (1, 2, 4)[seed % INSTANCES], "seq_len": draw.choice((64, 80))}
    return {"config": asdict(config), "n_layers": draw.randint(6, 10)} | shape
