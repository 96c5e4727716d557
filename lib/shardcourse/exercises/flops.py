"""The check of lesson 12's exercise: a function that counts the FLOPs of linear layers, forward and backward."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

CountFlops = Callable[[nn.Module, Tensor], int]


def problems(count_flops: CountFlops) -> list[str]:
    """Return what is wrong with a reader's `count_flops(model, x)`, in words; an empty list if nothing is.

    The right counts are those of FlopCounterMode.
    """
    found = []
    for words, model, x in _trials():
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        hooks = _hooks(model)
        got, right = count_flops(model, x), counter.get_total_flops()
        if got != right:
            found.append(f"{words}: it should return {right:,}, and returns {got if got is None else f'{got:,}'}")
        if _hooks(model) != hooks:
            found.append(f"{words}: hooks are left on the model")
    return found


def _trials() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield (what it is, a model of linear layers, its input)."""
    yield "one layer, whose input needs no gradient", nn.Sequential(nn.Linear(8, 4)), torch.randn(16, 8)
    yield "one layer, whose input needs one", nn.Sequential(nn.Linear(8, 4)), torch.randn(16, 8, requires_grad=True)
    yield "two layers, input of 3 dimensions", _two(), torch.randn(2, 5, 8)
    frozen = _two()
    frozen[0].requires_grad_(False)
    yield "two layers, the first one frozen", frozen, torch.randn(16, 8)
    last = _two()
    last[2].requires_grad_(False)
    yield "two layers, the last one frozen", last, torch.randn(16, 8)


def _two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 12, bias=False), nn.ReLU(), nn.Linear(12, 4))


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
