"""Check an optimizer with fp32 master weights that a reader writes (lesson 7a), and say in words what is wrong."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shardlab.precision import MasterWeights

_SMALL, _LARGE = (
    1e-4,
    0.05,
)  # learning rates: one step of the small one is far below the distance to the next bf16 number
_LATER = 0.5  # slope of the loss in the resumed run: with other gradients than before, Adam's moments matter


def check_master(optimizer_class: Callable) -> str:
    """Train bf16 weights with `optimizer_class(params, lr)`, compare with MasterWeights, and return the verdict.

    The optimizer needs `step`, `zero_grad`, `state_dict` and `load_state_dict`.
    """
    try:
        return _problem(optimizer_class) or "right: equal to MasterWeights to the bit, and it resumes from its state"
    except NotImplementedError:
        return "not written yet"


def _problem(optimizer_class: Callable) -> str:
    weight = _weight()
    start, optimizer = weight.detach().clone(), optimizer_class([weight], lr=_LARGE)
    _train(weight, optimizer, steps=3)
    if weight.dtype != torch.bfloat16:
        return f"the weights have become {str(weight.dtype)[6:]}: write into them with copy_, which rounds"
    if torch.equal(weight, start):
        return "no weight changes: is each master copied into its weight, and does each master get a gradient?"
    if weight.grad is not None and weight.grad.any():
        return "zero_grad leaves old gradients in the weights: they add up over steps"
    weight = _weight()
    optimizer = optimizer_class([weight], lr=_SMALL)
    _train(weight, optimizer)
    if torch.equal(weight, start):
        return "small updates are lost: the master must stay in fp32 from step to step, not be made from the weight"
    expected, expected_later = _reference()
    if not torch.equal(weight, expected):
        return "the weights change, but not as AdamW in fp32 changes them: is it AdamW, on the masters, with this lr?"
    resumed = nn.Parameter(weight.detach().clone())  # a new process has the checkpoint's weight and nothing else
    again = optimizer_class([resumed], lr=_SMALL)
    again.load_state_dict(optimizer.state_dict())
    _train(resumed, again, slope=_LATER)
    if not torch.equal(resumed, expected_later):
        return "a resumed run differs: are the masters in the state, and AdamW's own state, and are both loaded?"
    return ""


def _reference() -> tuple[Tensor, Tensor]:
    """Return the weight after the first run and after the resumed one."""
    weight = _weight()
    optimizer = MasterWeights([weight], torch.optim.AdamW, lr=_SMALL)
    _train(weight, optimizer)
    first = weight.detach().clone()
    _train(weight, optimizer, slope=_LATER)
    return first, weight


def _weight() -> nn.Parameter:
    return nn.Parameter((1 + torch.rand(256, generator=torch.Generator().manual_seed(0))).bfloat16())


def _train(weight: nn.Parameter, optimizer, steps: int = 60, slope: float = 1.0) -> None:
    for _ in range(steps):
        (slope * weight.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
