"""The exercise of lesson 9a: an AdamW on the host that takes each gradient during backward, and its check.

print(check_host_optimizer(HostAdamW))  # in words: "right", or what is wrong
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

STEPS, MICRO_BATCHES = 3, 2


def check_host_optimizer(make: Callable) -> str:
    """Train with `make(parameters)` and with torch's AdamW; say what is wrong, the likely cause first.

    A step has two micro-batches. Three other trainings, each with a known mistake, are compared too.
    """
    try:
        return _check(make)
    except Exception as error:  # the reader's code may raise anything
        return f"It raised {type(error).__name__}: {error}"


def _check(make: Callable) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    first = deepcopy(model.state_dict())
    batches = torch.randn(STEPS, MICRO_BATCHES, 5, 6)
    right = _trained(model, batches)
    known = {
        "The second micro-batch replaced the gradients of the first: add them up.": _trained(model, batches, last=True),
        "The gradients of earlier steps are still there: clear them after a step.": _trained(model, batches, keep=True),
    }
    optimizer = make(model.parameters())
    if not vars(optimizer):
        return "Not written yet: the optimizer holds nothing."
    for step in range(STEPS):
        for x in batches[step]:
            model(x).square().sum().backward()
            if held := sum(p.grad is not None for p in model.parameters()):
                total = len(first)
                return f"After backward {held} of {total} gradients are still on the device: take them in the hook."
        optimizer.step()
        if not _same(model.state_dict(), right[step]):
            return f"Step {step + 1} is wrong. {_cause(model.state_dict(), step, first, known)}".rstrip()
    return f"Right: {STEPS} steps of {MICRO_BATCHES} micro-batches give the parameters of torch's AdamW."


def _trained(model: nn.Module, batches: Tensor, *, last: bool = False, keep: bool = False) -> list[dict[str, Tensor]]:
    """Return the parameters after each step of torch's AdamW, if wanted with a mistake, on a copy of the model."""
    model = deepcopy(model)
    optimizer, found = torch.optim.AdamW(model.parameters()), []
    for micro_batches in batches:
        for x in micro_batches:
            if last:
                optimizer.zero_grad()
            model(x).square().sum().backward()
        optimizer.step()
        if not keep:
            optimizer.zero_grad()
        found.append(deepcopy(model.state_dict()))
    return found


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-7) for name in b)


def _cause(found: dict[str, Tensor], step: int, first: dict[str, Tensor], known: dict[str, list]) -> str:
    if _same(found, first):
        return "The parameters have not changed: copy the host's copies back to the device."
    return next((words for words, wrong in known.items() if _same(found, wrong[step])), "")
