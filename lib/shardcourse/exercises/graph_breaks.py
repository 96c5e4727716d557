"""The check of lesson 17's exercise: a block without graph breaks that computes what it computed before."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shardcourse.experiments.compiled import counted
from shardlab.model import FeedForward, preset

LIMIT = 1.0
WEAK, STRONG = 0.5, 40.0  # scales of inputs whose results stay below the limit, and exceed it
FOLLOWED = "backward through the graph a second time", "modified by an inplace operation"  # depends on the release


class Limited(nn.Module):
    """A feed-forward that scales its result down if an element is too large, and keeps statistics."""

    def __init__(self):
        super().__init__()
        self.feed_forward = FeedForward(preset("1M"))
        self.calls = 0
        self.largest = 0.0  # of all calls

    def forward(self, x):
        self.calls += 1
        y = self.feed_forward(x)
        top = y.abs().max().item()
        self.largest = max(self.largest, top)
        if top > LIMIT:
            y = y / top
        return x + y


def problems(mended: Callable[[], nn.Module]) -> list[str]:
    """Return what is wrong with a reader's class, in words; an empty list if nothing is."""
    ours, theirs = Limited(), mended()
    names = list(theirs.state_dict())
    if names != list(ours.state_dict()):
        more = sorted({*names} ^ {*ours.state_dict()})
        return [f"the state dict differs in {more}: old checkpoints no longer load (persistent=False)"]
    theirs.load_state_dict(ours.state_dict())
    found = []
    with counted() as counts:
        theirs.compile(backend="aot_eager")
        for name, scale in {"below the limit": WEAK, "above the limit": STRONG, "below it again": WEAK}.items():
            try:
                found += [f"{name}: {words}" for words in _differences(ours, theirs, scale)]
            except RuntimeError as error:
                return [*found, f"{name}: it fails. {_reason(str(error))}"]
    if counts.breaks:
        reason = counts.reasons[0] if counts.reasons else "a branch on a tensor's value"
        found.append(f"{counts.breaks} graph breaks are left; the first: {reason}")
    elif counts.graphs == 0:
        found.append("nothing is compiled: no operation stands in a graph")
    elif counts.graphs != 1:
        found.append(f"{counts.graphs} graphs for three equal calls: a Python value that changes is part of the guards")
    return found + _wrong_statistics(ours, theirs)


def _reason(message: str) -> str:
    """Return in words why a backward fails if autograd follows a statistic; otherwise the message's first lines."""
    if any(words in message for words in FOLLOWED):
        return "A statistic is part of autograd's graph, and the next call changes it: detach it"
    return " ".join(message.splitlines()[:2])


def _differences(ours: nn.Module, theirs: nn.Module, scale: float) -> list[str]:
    """Compare results and gradients of one call."""
    torch.manual_seed(0)
    x = scale * torch.randn(2, 8, 128)
    results, gradients = zip(*(_run(module, x) for module in (ours, theirs)), strict=True)
    if results[1].shape != results[0].shape or not torch.allclose(*results, rtol=1e-4, atol=1e-5):
        return ["the result differs"]
    if not torch.allclose(*gradients, rtol=1e-3, atol=1e-5):
        return ["the result is right, and the gradient is not: the divisor is a constant in the original"]
    return []


def _run(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    result = module(x)
    result.square().sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


def _wrong_statistics(ours: Limited, theirs: nn.Module) -> list[str]:
    found = []
    for name in ("calls", "largest"):
        expected, value = float(getattr(ours, name)), float(getattr(theirs, name, float("nan")))
        if not abs(value - expected) <= 1e-4 * expected:
            found.append(f"after three calls, `{name}` is {value:g} and should be {expected:g}")
    return found
