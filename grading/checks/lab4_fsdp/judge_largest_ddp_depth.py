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
LONGEST_S, TIMES_OF_REFERENCE = 15.0, 10.0  # a busy machine allows more: so many times what `ddp_peaks` takes


def judge(s: Session, check: str, points: float) -> Verdict:
    drawn = _instances(s.seed)
    depths = [i.pop("right") for i in drawn]
    measured = [i | {"depths": [n, n + 1]} for i, n in zip(drawn, depths, strict=True)]
    reference = s.order_reference("ddp_peaks", world_size=RANKS, device="cpu", seed=s.seed, instances=measured)[0]
    peaks, limit_s = reference["peaks"], max(LONGEST_S, TIMES_OF_REFERENCE * reference["seconds"])
    asked = [i | {"budget_bytes": (low + high) // 2} for i, (low, high) in zip(drawn, peaks, strict=True)]
    found = s.order(check, "largest_depth", world_size=1, device="cpu", instances=asked)[0]
    off = [n - right for n, right in zip(found["depths"], depths, strict=True)]
    figures = {
        "blocks, beside the largest depth that trains": (", ".join(f"{n:+d}" for n in off), "+0"),
        "seconds, of all": (f"{found['seconds']:.1f}", f"{limit_s:.0f}"),
    }
    if found["seconds"] > limit_s:
        cause = f"it takes {found['seconds']:.0f} s, where {limit_s:.0f} s are allowed."
        return Verdict(check, 0, points, cause, "", figures)
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


def _instances(seed: int) -> list[dict]:
    """Draw a tied model with a large vocabulary, one with few heads of keys, and one with many activations.

    So every number that a depth depends on changes some answer, by two blocks at least. One config's own depth is too
    large, and is no hint.
    """
    draw = random.Random(seed)
    own_depths = draw.sample((2, 5, 24), INSTANCES)
    drawn = [
        {name: draw.choice(values) for name, values in kind.items()} | {"n_layers": n}
        for kind, n in zip(_KINDS, own_depths, strict=True)
    ]
    return draw.sample([_instance(draw.randint(9, 12), **each) for each in drawn], INSTANCES)


_KINDS = (  # what each is drawn from; `times` is the hidden width, in widths
    {
        "dim": (64,),
        "times": (2, 3),
        "vocab_size": (2048, 2560),
        "n_kv_heads": (2,),
        "tied": (True,),
        "micro_batch": (1,),
        "seq_len": (64, 80),
    },
    {
        "dim": (96, 128),
        "times": (1,),
        "vocab_size": (256, 512),
        "n_kv_heads": (1,),
        "tied": (False,),
        "micro_batch": (1,),
        "seq_len": (48, 56),
    },
    {
        "dim": (64, 96),
        "times": (4,),
        "vocab_size": (256, 768),
        "n_kv_heads": (4,),
        "tied": (False,),
        "micro_batch": (4,),
        "seq_len": (96, 128),
    },
)


def _instance(right: int, dim: int, times: int, micro_batch: int, seq_len: int, **config) -> dict:
    """Return a model and its steps, and the depth that is asked for."""
    config = ModelConfig(dim=dim, n_heads=4, hidden_dim=times * dim, max_seq_len=256, **config)
    return {"config": asdict(config), "right": right, "micro_batch": micro_batch, "seq_len": seq_len}
