"""The exercise of lesson 8b: a policy that keeps products while they fit into a budget. `verdict` tries it.

print(verdict(keep_within))
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shardcourse.experiments.recomputing import gradients

BATCH, ROWS, WIDTH, INNER, BLOCKS = 2, 8, 32, 64, 3


class _Block(nn.Module):
    """Three products: one with a bias, one of batches, one with a bias. tanh saves its own result, so all come back."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.bmm(x @ x.transpose(1, 2) / WIDTH, x)  # two products of batches
        return self.down(self.up(mixed).tanh()).tanh()


class _Stack(nn.Module):
    def __init__(self, call: Callable) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.call = nn.ModuleList(_Block() for _ in range(BLOCKS)), call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x


def _products() -> list[tuple[int, int]]:
    """Return (bytes of the result, FLOPs) of a block's products in their order."""
    tokens = BATCH * ROWS
    sizes = [(ROWS, WIDTH), (WIDTH, ROWS), (INNER, WIDTH), (WIDTH, INNER)]  # (width of the result, inner width)
    return [(4 * tokens * width, 2 * tokens * width * inner) for width, inner in sizes]


def again(budget_bytes: float) -> int:
    """Return the FLOPs that a block repeats if products are kept in order, each one that still fits."""
    flops = 0
    for n_bytes, n_flops in _products():
        if n_bytes <= budget_bytes:
            budget_bytes -= n_bytes
        else:
            flops += n_flops
    return flops


def verdict(keep_within: Callable) -> str:
    """Say in words what is right or wrong with `keep_within(budget_bytes)`, which returns a context_fn."""
    if keep_within(0) is None:
        return "keep_within returns nothing yet: write it first."
    try:
        return _problem(keep_within) or "Right: each block keeps its products while they fit, and repeats the others."
    except Exception as error:  # the reader's own: it is shown, and the notebook goes on
        return f"It stops with {type(error).__name__}: {error}"


def _problem(keep_within: Callable) -> str:
    torch.manual_seed(1)
    x = torch.randn(BATCH, ROWS, WIDTH, requires_grad=True)
    nothing = _Stack(lambda block, x: block(x))
    base, right = _flops(nothing, x), gradients(nothing, x)
    sizes = [n for n, _ in _products()]
    for budget in (0, sizes[0], sizes[2], sizes[0] + sizes[3], sum(sizes) - 1, sum(sizes)):
        model = _Stack(partial(checkpoint, use_reentrant=False, context_fn=keep_within(budget)))
        if not all(map(torch.equal, right, gradients(model, x))):
            return f"With a budget of {budget:,} bytes the gradients are wrong."
        found, expected = _flops(model, x) - base, BLOCKS * again(budget)
        if found == expected:
            continue
        said = f"With a budget of {budget:,} bytes, {BLOCKS} blocks repeat {found:,} FLOPs; {expected:,} are expected."
        if found < expected:
            return f"{said} They keep more than the budget."
        return (
            f"{said} They keep too little. Is each product recognised, is each one kept that still fits, and does each "
            "call of `contexts` count anew?"
        )
    return ""


def _flops(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return counter.get_total_flops()
