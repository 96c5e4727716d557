"""A pipeline's schedules: the bubble of the papers, what is in flight, and torch's own order of actions."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from shardcourse.figures import pipeline_schedules
from shardlab import launch
from shardsim.pipeline_schedules import (
    Action,
    gpipe,
    idle_share,
    in_flight,
    interleaved,
    one_f_one_b,
    pipeline_timelines,
)
from shardtrace.timeline import Span, Timeline

FORWARD_S, BACKWARD_S = 1.0, 2.0
SIZES = [(2, 2), (4, 4), (4, 8), (3, 9), (8, 16)]


def plan(order, p: int, m: int, **options) -> list[list[Action]]:
    return [order(rank, p, m, **options) for rank in range(p)]


@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
@pytest.mark.parametrize("p, m", [*SIZES, (4, 2)])
def test_the_bubble_is_p_minus_1_of_m_plus_p_minus_1(order, p, m):
    """Huang et al. 2019, section 2.3. 1F1B idles as long: what it saves is memory."""
    ranks = pipeline_timelines(plan(order, p, m), FORWARD_S, BACKWARD_S)
    assert max(t.end_s for t in ranks) == pytest.approx((m + p - 1) * (FORWARD_S + BACKWARD_S))
    assert idle_share(ranks) == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize("p, m", SIZES)
@pytest.mark.parametrize("v", [2, 4])
def test_interleaved_has_a_v_th_of_the_bubble(p, m, v):
    """Narayanan et al. 2021, section 2.2: v pieces a rank, each a v-th as long."""
    ranks = pipeline_timelines(plan(interleaved, p, m, v=v), FORWARD_S / v, BACKWARD_S / v)
    assert idle_share(ranks) == pytest.approx((p - 1) / (v * m + p - 1))


@pytest.mark.parametrize("p, m", [*SIZES, (4, 2)])
def test_in_flight(p, m):
    assert [in_flight(gpipe(rank, p, m)) for rank in range(p)] == [m] * p
    assert [in_flight(one_f_one_b(rank, p, m)) for rank in range(p)] == [min(m, p - rank) for rank in range(p)]


def test_idle_is_what_nobody_computes():
    """Rank 1 ends last: 3 seconds of two ranks, of which 1 + 2 are work."""
    ranks = [Timeline(0, (Span("compute", "forward", 0, 1),)), Timeline(1, (Span("compute", "forward", 1, 3),))]
    assert idle_share(ranks) == pytest.approx(1 / 2)


def test_the_figure_says_what_is_idle():
    ranks = pipeline_timelines(plan(gpipe, 4, 8), FORWARD_S, BACKWARD_S)
    fig = pipeline_schedules({"GPipe": ranks}, {"GPipe": ranks, "other": ranks})
    words = [t.get_text() for t in fig.axes[0].texts]
    assert words.count("idle 27%") == 3
    assert [w for w in words if w[0] in "Go"] == ["GPipe, predicted", "GPipe, measured", "other"]
    assert words.count("7") == 3 * 2 * 4, "a bar bears the number of its micro-batch"
    with pytest.raises(ValueError, match="nothing to show"):
        pipeline_schedules({})


def test_a_wrong_order_is_refused():
    """Rank 0 wants the gradient before it has sent the activation."""
    schedule = plan(gpipe, 2, 2)
    schedule[0].sort(key=lambda action: action.kind)
    with pytest.raises(ValueError, match=r"wait for ever: next are \[Action\(kind='backward', piece=0"):
        pipeline_timelines(schedule, FORWARD_S, BACKWARD_S)
    with pytest.raises(ValueError, match="6 micro-batches don't come in groups of 4"):
        interleaved(0, 4, 6, 2)


class Counted(nn.Module):
    """Notes its actions; micro-batch i is the input i."""

    def __init__(self, piece: int, log: list[Action]):
        super().__init__()
        self.weight, self.piece, self.log = nn.Parameter(torch.ones(1)), piece, log

    def forward(self, x):
        i = int(x[0, 0].nan_to_num().item())  # torch asks for the shapes with memory that nobody has written
        self.log.append(Action("forward", self.piece, i))
        y = x * self.weight
        if y.requires_grad:  # PyTorch 2.11 finds out the shapes without gradients
            y.register_hook(lambda _: self.log.append(Action("backward", self.piece, i)))
        return y


def torchs_order(make_schedule, m: int, v: int = 1) -> list[Action]:
    rank, p, log = torch.distributed.get_rank(), torch.distributed.get_world_size(), []
    stages = [PipelineStage(Counted(i, log), i, p * v, torch.device("cpu")) for i in range(rank, p * v, p)]
    schedule = make_schedule(stages if v > 1 else stages[0], m, lambda y, target: (y - target).sum())
    x = torch.arange(m, dtype=torch.float32)[:, None]
    for _ in range(2):  # in the first step torch also finds out the shapes, by a run of its own
        log.clear()
        schedule.step(*[x] if rank == 0 else [], **{"target": x} if rank == p - 1 else {})
    return log


SCHEDULES = [
    (ScheduleGPipe, gpipe, 1),
    (Schedule1F1B, one_f_one_b, 1),
    (ScheduleInterleaved1F1B, partial(interleaved, v=2), 2),
]


def test_torch_takes_the_same_order():
    m = 8
    found = launch(lambda: [torchs_order(make, m, v) for make, _, v in SCHEDULES], 4, device="cpu")
    for (make, order, _), of_ranks in zip(SCHEDULES, zip(*found, strict=True), strict=True):
        assert list(of_ranks) == plan(order, 4, m), make.__name__
