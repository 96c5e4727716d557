"""Compare the time of a step with that of FSDP2 by block, where messages take time; their laps alternate.

Computation is slept and the network simulated.
"""

from functools import cache

import torch

from grading.checks.lab4_fsdp import on_ranks
from grading.judge.session import Session
from grading.judge.timed_laps import Lap, race, too_quick
from grading.judge.timing_verdict import race_verdict
from grading.judge.verdict import Verdict
from shardlab.model import Transformer, preset

SLOWEST = 1.2  # step time over that of FSDP2 by block
RANKS = 4
PROOF_TOLERANCE = 1e-3


def judge(s: Session, check: str, points: float) -> Verdict:
    network = {"network": on_ranks.LAP_NETWORK, "world_size": RANKS, "device": "cpu"}
    timing = race(s, check, "laps", bars=(SLOWEST,), proof=_worked, **network)
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
