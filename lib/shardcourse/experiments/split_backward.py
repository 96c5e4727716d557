"""Run a pipeline whose backward is split in two, on real ranks that sleep instead of computing: lesson 23.

An action is ("forward", i), ("backward", i) or ("weight", i) of micro-batch i. "backward" computes the gradient of a
stage's input, "weight" the gradients of its weights. Without a split, "backward" does both before it sends.

Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 2.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardcourse.experiments.relative_error import relative_error
from shardlab import launch
from shardtrace.timeline import Span, Timeline

WIDTH, TICK_S = 16, 0.015  # TICK_S: seconds of a forward, of a backward, and of the weights' gradients
Action = tuple[str, int]


def stages(p: int) -> list[nn.Module]:
    """Return the same p stages on every rank."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(p)]


def micro_batches(m: int) -> Sequence[Tensor]:
    torch.manual_seed(1)
    return torch.randn(4 * m, WIDTH).chunk(m)


def loss_of(y: Tensor, m: int) -> Tensor:
    return y.square().mean() / m


def one_process(p: int, m: int) -> list[list[Tensor]]:
    """Return the gradients of each stage's weights, computed without a pipeline."""
    model = nn.Sequential(*stages(p))
    for x in micro_batches(m):
        loss_of(model(x), m).backward()
    return [[w.grad for w in stage.parameters()] for stage in model]


class Stage:
    """This rank's stage, what waits for its backward, and when it computed."""

    def __init__(self, m: int, input_gradient: Callable, weight_gradients: Callable) -> None:
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.module, self.m = stages(self.last + 1)[self.rank], m
        self.weights = list(self.module.parameters())
        self.gradients = [torch.zeros_like(w) for w in self.weights]
        self.input_gradient, self.weight_gradients = input_gradient, weight_gradients
        self.inputs, self.kept, self.pending = micro_batches(m), {}, {}  # type: ignore[var-annotated]
        self.spans: list[Span] = []
        self.sends: list[tuple[dist.Work | None, Tensor]] = []

    def forward(self, i: int) -> None:
        x = self._receive(self.rank - 1) if self.rank else self.inputs[i].clone()
        self._sleep("forward", i)
        y = self.module(x.requires_grad_())
        self.kept[i] = x, loss_of(y, self.m) if self.rank == self.last else y
        self._send(y.detach(), self.rank + 1)

    def backward(self, i: int, whole: bool = False) -> None:
        x, y = self.kept.pop(i)
        dy = torch.ones(()) if self.rank == self.last else self._receive(self.rank + 1)
        self._sleep("backward", i)
        dx = self.input_gradient(x, y, dy)
        self.pending[i] = y, dy
        if whole:
            self.weight(i)
        self._send(dx, self.rank - 1)

    def weight(self, i: int) -> None:
        y, dy = self.pending.pop(i)
        self._sleep("weight", i)
        for total, gradient in zip(self.gradients, self.weight_gradients(self.weights, y, dy), strict=True):
            total += gradient

    def _sleep(self, kind: str, i: int) -> None:
        began = time.monotonic()
        time.sleep(TICK_S)
        self.spans.append(Span("compute", kind, began, time.monotonic(), str(i)))

    def _receive(self, source: int) -> Tensor:
        x = torch.empty(4, WIDTH)
        dist.recv(x, source)
        return x

    def _send(self, x: Tensor, to: int) -> None:
        if 0 <= to <= self.last:
            self.sends.append((dist.isend(x, to), x))


def run(lists: Sequence[Sequence[Action]], m: int, input_gradient: Callable, weight_gradients: Callable):
    """Run this rank's list twice. Return the second run's timeline and gradients.

    If the list has no "weight" actions, backward is whole.
    """
    for _ in range(2):
        stage = Stage(m, input_gradient, weight_gradients)
        mine = lists[stage.rank]
        whole = all(kind != "weight" for kind, _ in mine)
        dist.barrier()
        for kind, i in mine:
            if kind == "backward":
                stage.backward(i, whole)
            else:
                getattr(stage, kind)(i)
        for work, _ in stage.sends:
            if work:
                work.wait()
    return Timeline(stage.rank, tuple(stage.spans)), stage.gradients


def measured(lists: Sequence[Sequence[Action]], m: int, input_gradient: Callable, weight_gradients: Callable):
    """Run a schedule on as many ranks as it has lists. Return their timelines, and the largest error of a gradient."""
    p = len(lists)
    ranks = launch(run, p, lists, m, input_gradient, weight_gradients, device="cpu")
    mine = [gradient for _, gradients in ranks for gradient in gradients]
    right = [gradient for gradients in one_process(p, m) for gradient in gradients]
    error = max(relative_error(a, b) for a, b in zip(mine, right, strict=True))
    return [timeline for timeline, _ in ranks], error
