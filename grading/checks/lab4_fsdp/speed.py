"""Compare the time of a step with that of FSDP2 by block; their laps alternate.

On GPUs the tier's model is computed, and messages take what they take. On CPU tiers computation is slept and the
network simulated: ranks that share cores slow each other down, and a message between them takes no time.
"""

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
        return verdict_of(check, points, race(s, check, "laps", bars=(SLOWEST,), proof=_worked, **network))
    timing = race(s, check, "device_laps", bars=(SLOWEST,), proof=agrees, tier=s.tier.name)
    verdict = verdict_of(check, points, timing)
    return verdict if timing is None else replace(verdict, figures=verdict.figures | _throughput(s, timing))


def on_gpus(s: Session) -> bool:
    return s.tier.device != "cpu"


def verdict_of(check: str, points: float, timing: Timing | None) -> Verdict:
    return race_verdict(
        check,
        points,
        timing,
        SLOWEST,
        beside="that of one unit a block",
        fast="messages hide behind computing, as they can.",
        slow="a step takes {ratio:.1f} times as long as with one unit a block: too many messages, or none hidden.",
        idle="the timed steps did not compute sharded gradients, or wrong ones (see lab4.fits and lab4.sharded), or "
        "took less time than their blocks need.",
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


def agrees(lap: Lap) -> bool:
    """Return whether the shards' squares sum over ranks to those of the reference in the same lap."""
    found, right = (sum(r["squares"] for r in replies) for replies in (lap.replies, lap.reference))
    return abs(found / right - 1) <= PROOF_TOLERANCE


def _worked(lap: Lap) -> bool:
    """Return whether every block took its time, and the shards' squares sum over ranks to the whole gradient's."""
    if too_quick(lap, on_ranks.LAP_BLOCKS * (on_ranks.LAP_FORWARD_S + on_ranks.LAP_BACKWARD_S)):
        return False
    found, right = sum(r["squares"] for r in lap.replies), _squares(lap.seed, len(lap.replies))
    return abs(found / right - 1) <= PROOF_TOLERANCE


@cache
def _squares(seed: int, world_size: int) -> float:
    torch.manual_seed(0)
    model = Transformer(preset("1M", n_layers=on_ranks.LAP_BLOCKS))
    for rank in range(world_size):
        loss = model(*on_ranks.lap_batch(seed, rank, world_size))
        (loss / world_size).backward()
    return sum(p.grad.double().square().sum().item() for p in model.parameters())
