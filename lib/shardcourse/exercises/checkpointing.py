"""The exercise of lesson 8a: activation checkpointing with saved-tensor hooks. `verdict` tries a reader's function.

print(verdict(recomputed))
"""

import gc
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardcourse.experiments.recomputing import most_activations, track_step

LAYERS = 4


class _Layer(nn.Module):
    """A layer that counts its runs. rsqrt and tanh save their own results, as attention and softmax do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.runs = nn.Linear(32, 64), nn.Linear(64, 32), 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1)
        return x + self.down(self.up(normed).tanh().sin())


class _Stack(nn.Module):
    def __init__(self, call: Callable) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.each, self.call = [_Layer() for _ in range(LAYERS)], call
        self.layers = nn.ModuleList(self.each)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def verdict(recomputed: Callable) -> str:
    """Say in words what is right or wrong with `recomputed(block, *args)`, a checkpoint that is not reentrant."""
    torch.manual_seed(1)
    x = torch.randn(64, 32)
    try:
        if recomputed(_Layer(), x) is None:
            return "recomputed returns nothing yet: write it first."
        return _problem(recomputed, x) or "Right: the same gradients to the bit, and no more memory than PyTorch's."
    except Exception as error:  # the reader's own: it is shown, and the notebook goes on
        return f"It stops with {type(error).__name__}: {error}"


def _problem(recomputed: Callable, x: Tensor) -> str:
    plain, mine = _Stack(lambda layer, x: layer(x)), _Stack(recomputed)
    plain(x).square().sum().backward()
    output = mine(x)
    if not output.requires_grad:
        return "The result does not require a gradient: autograd did not record the first run."
    after_forward = [layer.runs for layer in mine.each]
    output.square().sum().backward()
    runs = [layer.runs for layer in mine.each]
    if set(after_forward) != {1}:
        return f"Forward runs a block {after_forward[0]} times. Once is enough."
    if set(runs) == {1}:
        return "Backward does not run the block again: somebody kept the tensors of the first run."
    if set(runs) != {2}:
        return f"A block runs {max(runs)} times. Let one second run fill in all tensors that backward needs."
    if any(p.grad is None for p in mine.parameters()):
        return "Some weights get no gradient."
    if not all(map(torch.equal, _grads(plain), _grads(mine))):
        return "The gradients differ. Does each number get the tensor that was saved under it in the first run?"
    torchs = _most(partial(checkpoint, use_reentrant=False), x)
    if (times := _most(recomputed, x) / torchs) > 1.1:
        return (
            f"Right gradients, but {times:.1f} times the activations of PyTorch's checkpoint. The second run's graph "
            "stays in memory: a tensor that it saved leads back to it. Collect t.detach(), and return nothing."
        )
    return ""


def _grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


def _most(call: Callable, x: Tensor) -> int:
    """Return the most bytes of activations, without the garbage collector, which would free cycles at odd moments."""
    gc.disable()
    try:
        return most_activations(track_step(_Stack(call), x))
    finally:
        gc.enable()
