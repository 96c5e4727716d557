"""The check of lesson 7b's exercise: it accepts the answer, and says of each wrong answer what is wrong."""

import pytest
import torch
import torch.distributed as dist

from shardcourse.exercises.loss_scaler import check_scaler


class Scaler:
    """The answer, in parts that a wrong one can replace."""

    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval, self.good_steps = scale, growth_interval, 0

    def scale_loss(self, loss):
        return loss * self.scale

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        bad = self.on_any_rank(not all(g.isfinite().all() for g in gradients))
        if not bad:
            self.unscale(gradients)
            optimizer.step()
        self.adjust(bad)

    def on_any_rank(self, bad):
        flag = torch.tensor(float(bad))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

    def unscale(self, gradients):
        for g in gradients:
            g.div_(self.scale)

    def adjust(self, bad):
        self.good_steps = 0 if bad else self.good_steps + 1
        if bad:
            self.scale /= 2
        elif self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2, 0


class Unwritten(Scaler):
    def step(self, optimizer):
        raise NotImplementedError


class AsksNobody(Scaler):
    def on_any_rank(self, bad):
        return bad


class NeverSkips(Scaler):
    def on_any_rank(self, bad):
        return False


class NotUnscaled(Scaler):
    def unscale(self, gradients):
        pass


class NeverGrows(Scaler):
    def adjust(self, bad):
        self.scale /= 2 if bad else 1


class KeepsCounting(Scaler):
    def adjust(self, bad):
        good = self.good_steps
        super().adjust(bad)
        self.good_steps = good if bad else self.good_steps


class SkipsAll(Scaler):
    def step(self, optimizer):
        self.adjust(self.on_any_rank(not optimizer.param_groups[0]["params"][0].grad.isfinite()))


class StepsEverywhereElse(Scaler):
    """Rank 0 steps, though it lowers its scale."""

    def step(self, optimizer):
        mine = not optimizer.param_groups[0]["params"][0].grad.isfinite()
        bad = self.on_any_rank(mine)
        if not mine:
            self.unscale([optimizer.param_groups[0]["params"][0].grad])
            optimizer.step()
        self.adjust(bad)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Scaler, "right"),
        (Unwritten, "not written yet"),
        (AsksNobody, "the ranks disagree"),
        (NeverSkips, "an infinite gradient reached the weights"),
        (NotUnscaled, "not divided by the scale"),
        (NeverGrows, "the scale should be"),
        (KeepsCounting, "the scale should be"),
        (SkipsAll, "steps without an overflow are skipped"),
        (StepsEverywhereElse, "both ranks must skip"),
    ],
)
def test_the_check_names_what_is_wrong(answer, verdict):
    assert verdict in check_scaler(answer)
