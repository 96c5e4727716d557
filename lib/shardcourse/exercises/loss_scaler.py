"""Check a loss scaler that a reader writes (lesson 7b) on two ranks, and say in words what is wrong."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from shardlab import launch

_START, _INTERVAL, _STEPS, _OVERFLOW = 1024.0, 3, 8, 4  # the scale, the interval of its growth, steps, the bad step


def check_scaler(scaler_class: Callable) -> str:
    """Train with `scaler_class(scale, growth_interval)` on two ranks, of which one overflows, and return the verdict.

    The scaler needs `scale_loss(loss)`, `step(optimizer)`, and its scale in `scale`.
    """
    (scales, weights), (scales_1, weights_1) = launch(_train, 2, scaler_class, device="cpu", stream=False)
    if not scales:
        return "not written yet"
    if not all(map(torch.isfinite, weights + weights_1)):
        return "an infinite gradient reached the weights: skip the step"
    if scales != scales_1:
        return f"the ranks disagree after rank 1's overflow: rank 0 has the scales {scales}, rank 1 {scales_1}"
    moved = [bool(b != a) for a, b in zip(weights, weights[1:], strict=False)]
    if moved[_OVERFLOW] or weights_1[_OVERFLOW] != weights_1[_OVERFLOW + 1]:
        return "both ranks must skip the step in which one of them overflows"
    if not all(moved[:_OVERFLOW] + moved[_OVERFLOW + 1 :]):
        return "steps without an overflow are skipped, too"
    if abs(weights[1] - 0.9) > 1e-3:
        return "the gradients are not divided by the scale: the first step is not that of plain SGD"
    if scales != _expected():
        return f"after each step the scale should be {_expected()}, not {scales}"
    return "right: both ranks skip the same step, and the scale halves and grows alike"


def _expected() -> list[float]:
    scale, good, found = _START, 0, []
    for step in range(_STEPS):
        good = 0 if step == _OVERFLOW else good + 1
        scale = scale / 2 if step == _OVERFLOW else scale * 2 if good == _INTERVAL else scale
        good %= _INTERVAL
        found.append(scale)
    return found


def _train(scaler_class: Callable) -> tuple[list[float], list[torch.Tensor]]:
    """Return the scale after each step, and the weight at the start and after each step."""
    weight = nn.Parameter(torch.ones(()))
    optimizer, scales, weights = torch.optim.SGD([weight], lr=0.1), [], [weight.detach().clone()]
    try:
        scaler = scaler_class(_START, _INTERVAL)
        for step in range(_STEPS):
            optimizer.zero_grad()
            scaler.scale_loss(weight * 1.0).backward()
            if step == _OVERFLOW and dist.get_rank() == 1:
                weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scales.append(float(scaler.scale))
            weights.append(weight.detach().clone())
    except NotImplementedError:
        return [], []
    return scales, weights
