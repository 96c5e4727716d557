"""The runs on ranks: the model, the samples of each rank and step, and the schedule."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, AdamW, Optimizer

WIDTHS = (13, 37, 5)
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda params: SGD(params, lr=0.02, momentum=0.9),
    "AdamW": lambda params: AdamW(params, lr=0.01, eps=0.05, weight_decay=0.1),  # an eps that leaves gradients a size
}
MOST_SAMPLES = 9


class Net(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))  # one element
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.scale * self.layers(x) - y).square().mean()


class Setting(NamedTuple):
    """A run. `up[k]` lists the sites whose link works at the end of round k; of later rounds all do."""

    seed: int
    nodes: int
    ranks_per_node: int
    optimizer: str
    steps: int
    H: int
    lr: float
    momentum: float
    late: int = 0
    up: tuple = ()
    dtype: str = "float64"  # of the parameters

    def up_at(self, k: int) -> list[int]:
        return list(self.up[k]) if k < len(self.up) else list(range(self.nodes))


def build(seed: int, dtype: str = "float64") -> Net:
    """Return the model, with the same weights on every rank. They are drawn in float32, whatever the dtype."""
    torch.manual_seed(seed)
    return Net(*WIDTHS).to(getattr(torch, dtype))


def samples(run: Setting, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's samples of a step: 1 to 9, more at the last site. Each site has samples of its own kind."""
    draw = torch.Generator().manual_seed(1_000_003 * run.seed + 1009 * step + rank)
    site = rank // run.ranks_per_node
    n = int(torch.randint(1, MOST_SAMPLES + 1, (), generator=draw))
    n = n if site == run.nodes - 1 else 1 + n // 3
    x = torch.randn(n, WIDTHS[0], generator=draw, dtype=torch.float64)
    y = torch.sin(x[:, : WIDTHS[-1]] * (1 + site)) + site
    return x, y


def flat_weights(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()
