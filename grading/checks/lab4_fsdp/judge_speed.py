"""Compare the time of a step with that of FSDP2 by block; their laps alternate.

On GPUs the tier's model is computed, and messages take what they take. On CPU tiers computation is slept and the
network simulated: ranks that share cores slow each other down, and a message between them takes no time.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from grading.checks.lab4_fsdp import on_ranks
from grading.judge.session import Session
from grading.judge.timed_laps import Lap, race, too_quick
from grading.judge.timing_verdict import Timing, race_verdict
from grading.judge.verdict import Verdict
from shardlab.model import Transformer, preset

SLOWEST = 1.2  # step time over that of FSDP2 by block
RANKS = 4
PROOF_TOLERANCE = 1e-3


def judge(s: Session, check: str, points: float) -> Verdict:
    if not on_gpus(s):
        network = {"network": on_ranks.LAP_NETWORK, "world_size": RANKS, "device": "cpu"}
        timing, idle = raced(s, check, "laps", why_no_work, **network)
        return verdict_of(check, points, timing, idle)
    timing, idle = raced(s, check, "device_laps", why_other_gradients, tier=s.tier.name)
    verdict = verdict_of(check, points, timing, idle)
    return verdict if timing is None else replace(verdict, figures=verdict.figures | _throughput(s, timing))


def on_gpus(s: Session) -> bool:
    return s.tier.device != "cpu"


def raced(s: Session, check: str, drill: str, why_not: Callable[[Lap], str], **arguments) -> tuple[Timing | None, str]:
    """Return the race's result, and in words why a lap's work was not done, if it was not."""
    faults: list[str] = []

    def proof(lap: Lap) -> bool:
        faults.extend(filter(None, [why_not(lap)]))
        return not faults

    timing = race(s, check, drill, bars=(SLOWEST,), proof=proof, **arguments)
    return timing, next(iter(faults), "")


def verdict_of(check: str, points: float, timing: Timing | None, idle: str) -> Verdict:
    return race_verdict(
        check,
        points,
        timing,
        SLOWEST,
        beside="that of one unit a block",
        fast="messages hide behind computing, as they can.",
        slow="a step takes {ratio:.1f} times as long as with one unit a block.",
        idle=idle,
    )


def _throughput(s: Session, timing: Timing) -> dict[str, tuple[str, str]]:
    """Return tokens a second, and how the reference scales: throughput_N / (N throughput_1). No bar for either.

    A rank's batch is the same on one GPU and on N, so that the second is the ratio of the seconds of a step. It is left
    out where ranks share a GPU: it would say nothing.
    """
    n, tokens = s.tier.world_size, s.tier.world_size * s.tier.micro_batch * s.tier.seq_len
    found = {"tokens a second, forward and backward": (f"{tokens / timing.mine_s:,.0f}", "")}
    if s.tier.gpus == n:
        [alone_s] = s.watch_reference("seconds_of_a_step", tier=s.tier.name, world_size=1).replies
        found[f"scaling efficiency, 1 to {n} GPUs, one unit a block"] = (f"{alone_s / timing.reference_s:.2f}", "")
    return found


def why_other_gradients(lap: Lap) -> str:
    """Return in words how the shards' squares differ from the reference's in the same lap, summed over ranks."""
    found, right = (sum(r["squares"] for r in replies) for replies in (lap.replies, lap.reference))
    if abs(found / right - 1) <= PROOF_TOLERANCE:
        return ""
    return (
        f"the timed steps' gradients, summed over ranks, have {found / right:.4g} times the squares that they should."
    )


def why_no_work(lap: Lap) -> str:
    """Return in words what was not done: a block did not take its time, or gradients are not the whole batch's.

    On a busy machine a step takes long without it. So sleeps are counted, too.
    """
    for phase, name in enumerate(("forwards", "backwards")):
        count = min(r["slept"][phase] for r in lap.replies)
        if count < on_ranks.LAP_BLOCKS:
            return f"a timed step computed {count} {name} of blocks, and it has {on_ranks.LAP_BLOCKS}."
    least_s = on_ranks.LAP_BLOCKS * (on_ranks.LAP_FORWARD_S + on_ranks.LAP_BACKWARD_S)
    if too_quick(lap, least_s):
        return f"a timed step took {lap.seconds:.2f} s, less than its blocks sleep: {least_s:.2f} s."
    return why_other_gradients(lap._replace(reference=[{"squares": _squares(lap.seed, len(lap.replies))}]))


@cache
def _squares(seed: int, world_size: int) -> float:
    torch.manual_seed(0)
    model = Transformer(preset("1M", n_layers=on_ranks.LAP_BLOCKS))
    for rank in range(world_size):
        loss = model(*on_ranks.lap_batch(seed, rank, world_size))
        (loss / world_size).backward()
    return sum(p.grad.double().square().sum().item() for p in model.parameters())
