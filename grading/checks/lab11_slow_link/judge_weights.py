"""Judge the weights of every rank after every step and after `finish`: rounds, late messages, missed rounds."""

import random
from functools import cache

import torch
from torch import Tensor

from grading.checks.lab11_slow_link.model_samples_schedule import Setting, build, flat_weights
from grading.checks.lab11_slow_link.on_ranks import project
from grading.checks.lab11_slow_link.truth import SLIPS, Alone
from grading.judge.session import Session
from grading.judge.tensor_projections import distance
from grading.judge.verdict import Verdict

SHAPES = {"2x2": (2, 2), "4x1": (4, 1)}
FAST = "{} nodes, 4 GB/s 1 us inside, 2 GB/s 2 us between"
# Relative, of the weights' change, by the parameters' dtype. In float64 sums in another order give 1e-15, and float32
# anywhere 1e-8; in float32 they give up to 4e-6, and bfloat16 anywhere 1e-3.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
ROUNDED = 1e-4  # up to this it looks like rounding; the mildest slip is off by more
SAME_MISTAKE = 1e-6
LONG, SHORT = 4, 3  # rounds


def judge_outer(s: Session, check: str, points: float) -> Verdict:
    return _judge(s, check, points, outer_runs(s.seed), "rounds, outer steps and `finish` are those of one process.")


def judge_late(s: Session, check: str, points: float) -> Verdict:
    return _judge(s, check, points, late_runs(s.seed), "each local step is in one message, and none is lost.")


def judge_missed(s: Session, check: str, points: float) -> Verdict:
    words = "a site that missed rounds comes back with all of its steps, and continues with the others."
    return _judge(s, check, points, missed_runs(s.seed), words)


Runs = dict[str, list[Setting]]  # by shape: those that one launch does


def outer_runs(seed: int) -> Runs:
    """Draw rounds with all sites: both inner optimizers on both shapes, a short last round, H = 1, and float32."""
    rng, found = random.Random(f"{seed} outer"), {}
    for name, shape in SHAPES.items():
        first, second = rng.sample(("SGD", "AdamW"), 2)
        H = rng.randint(3, 4)
        outer = round(rng.uniform(0.6, 0.9), 3), round(rng.uniform(0.5, 0.9), 3)
        found[name] = [
            Setting(seed, *shape, first, LONG * H + rng.randint(1, H - 1), H, *outer),
            Setting(seed + 1, *shape, second, SHORT * 2, 2, *outer[::-1]),
            Setting(seed + 2, *shape, "SGD", SHORT, 1, 1.0, 0.0),  # this is data parallelism
            Setting(seed + 7, *shape, "SGD", SHORT * 2 + 1, 2, *outer, dtype="float32"),
        ]
    return found


def late_runs(seed: int) -> Runs:
    """Draw messages that come late. The last one is on its way at the end, with steps after it or without."""
    rng, found = random.Random(f"{seed} late"), {}
    for name, shape in SHAPES.items():
        first, second = rng.sample(("SGD", "AdamW"), 2)
        H, outer = rng.randint(4, 5), (round(rng.uniform(0.6, 0.9), 3), round(rng.uniform(0.5, 0.9), 3))
        late = rng.randint(2, H - 1)
        found[name] = [
            Setting(seed + 3, *shape, first, SHORT * H + rng.randint(1, late - 1), H, *outer, late),
            Setting(seed + 4, *shape, second, LONG * 3, 3, *outer, 1),
        ]
    return found


def missed_runs(seed: int) -> Runs:
    """Draw sites that miss one round and two, one after the other and together, and one that is down at the end."""
    rng, found = random.Random(f"{seed} missed"), {}
    for name, shape in SHAPES.items():
        outer = round(rng.uniform(0.6, 0.9), 3), round(rng.uniform(0.5, 0.9), 3)
        first, second = rng.sample(("SGD", "AdamW"), 2)
        everyone = tuple(range(shape[0]))
        a, b = rng.sample(everyone, 2)
        no_a, no_b = (tuple(i for i in everyone if i != down) for down in (a, b))
        neither = tuple(i for i in no_a if i != b)
        one_by_one = everyone, no_a, no_a, everyone, no_b
        together = (no_b, neither, no_a, neither) if neither else (no_b, everyone, no_a, no_a)
        found[name] = [
            Setting(seed + 5, *shape, first, 13, 2, *outer, 0, one_by_one),
            Setting(seed + 6, *shape, second, 8, 2, *outer, 0, together),
        ]
    return found


def words_of(shape: str, words: str = FAST) -> dict:
    """Return the arguments of a drill on that shape of network: its ranks are on the CPU on every tier."""
    nodes, ranks = SHAPES[shape]
    words = words.format(shape)
    return {"world_size": nodes * ranks, "device": "cpu", "network": words, "words": words}


def replies_of(s: Session, check: str, runs: Runs) -> dict[str, list]:
    """Return each rank's replies, by shape: a reply has an entry for each run."""
    return {name: s.order(check, "train", runs=these, **words_of(name)) for name, these in runs.items()}


def _judge(s: Session, check: str, points: float, runs: Runs, words: str) -> Verdict:
    """Compare every rank's weights after every step; name the first run that is wrong, its step and its cause."""
    figures, cause = {}, ""
    for name, replies in replies_of(s, check, runs).items():
        for i, run in enumerate(runs[name]):
            error, step, rank = _worst(replies, i, run)
            what = f"{name}, {run.optimizer}, H={run.H}" + (f", late={run.late}" if run.late else "")
            what += f", {run.dtype}" if run.dtype != "float64" else ""
            figures[f"{what}: error, of the weights' change"] = (f"{error:.1e}", f"{TOLERANCE[run.dtype]:g}")
            if error > TOLERANCE[run.dtype]:
                cause = cause or f"on {what}: {_cause(replies, i, run, step, rank)}"
    return Verdict(check, 0 if cause else points, points, cause or words, "", figures)


def _worst(replies: list, i: int, run: Setting) -> tuple[float, int, int]:
    """Return the largest error; and the first step and rank that are wrong."""
    truth, first, largest = projected(run), None, 0.0
    for step in range(run.steps + 1):
        for rank, reply in enumerate(replies):
            error = distance(_weights(reply, i, step), truth[step][rank // run.ranks_per_node])
            largest = max(largest, error)
            if error > TOLERANCE[run.dtype] and first is None:
                first = step, rank
    return largest, *(first or (0, 0))


def _weights(reply: list, i: int, step: int) -> Tensor:
    return torch.tensor(reply[i]["weights"][step], dtype=torch.float64)


@cache
def projected(run: Setting, slip: str = "") -> list[list[Tensor]]:
    """Return each site's projected change after each step, in one process."""
    start = flat_weights(build(run.seed))
    return [
        [torch.tensor(project(flat - start, run.seed), dtype=torch.float64) for flat in sites]
        for sites in Alone(run, slip).steps()
    ]


def _cause(replies: list, i: int, run: Setting, step: int, rank: int) -> str:
    """Return the cause in words, from the first step in which a rank is wrong."""
    when = "after `finish`" if step == run.steps else f"after step {step + 1}"
    mine, truth = _weights(replies[rank], i, step), projected(run)[step]
    site = rank // run.ranks_per_node
    if not torch.isfinite(mine).all():
        hint = " Did the last round divide by 0 samples?" if step == run.steps else ""
        return f"{when} the weights of rank {rank} are not finite.{hint}"
    if mine.norm() == 0:
        return f"{when} the weights of rank {rank} have not changed: does `optimizer` get gradients, and step?"
    others = [_weights(replies[r], i, step) for r in range(len(replies)) if r != rank]
    if slip := _slip(replies[rank], i, run, step, site):
        return f"{when} the weights of rank {rank} are {SLIPS[slip]}"
    off = distance(mine, truth[site])
    if off < ROUNDED:
        return f"{when} rank {rank} is off by {off:.0e}: rounded. Messages and sums keep the parameters' dtype."
    if step == run.steps and min(distance(other, mine) for other in others) > SAME_MISTAKE:
        return f"{when} rank {rank} has weights of its own: all ranks have to end with the common ones."
    right = [r for r in range(len(replies)) if r // run.ranks_per_node == site and r != rank]
    right = [r for r in right if distance(_weights(replies[r], i, step), truth[site]) <= TOLERANCE[run.dtype]]
    if right:
        return f"{when} rank {rank} is off by {off:.2g} of their change, and rank {right[0]} of the same site is right."
    return f"{when} the weights of rank {rank} are off by {off:.2g} of their change: {_moment(run, step)}."


def _slip(reply: list, i: int, run: Setting, first: int, site: int) -> str:
    """Return the slip that gives these weights for the most steps, and for two at least if there are two; else ""."""

    def like(slip: str) -> int:
        wrong, n = projected(run, slip), 0
        if distance(wrong[first][site], projected(run)[first][site]) < SAME_MISTAKE:
            return 0
        while first + n <= run.steps and distance(_weights(reply, i, first + n), wrong[first + n][site]) < SAME_MISTAKE:
            n += 1
        return n

    steps = {slip: like(slip) for slip in SLIPS}
    longest = max(steps, key=lambda slip: steps[slip])
    return longest if steps[longest] >= min(2, run.steps + 1 - first) else ""


def _moment(run: Setting, step: int) -> str:
    """Say what happens in this step."""
    since = (step + 1) % run.H
    if step == run.steps:
        return "all steps before it were right, so look at the last round"
    if since == run.late and step + 1 > run.late:
        up = run.up_at((step + 1) // run.H - 1)
        return f"a mean is applied here, of sites {', '.join(map(str, up))}"
    return "no round ends here, so look at the local step: the site's gradient, and the optimizer"
