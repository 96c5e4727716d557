"""Record which elements of a model's parameters the optimizers on this rank update."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

Piece = tuple[int, int, int]  # (parameter, start, end), as in `owned`


class Updated:
    """Parameters with a gradient in the groups of the optimizers that have stepped."""

    def __init__(self, module: nn.Module) -> None:
        self._whole = [p.detach() for p in module.parameters()]  # where the parameters were at first
        self._pieces: set[Piece] = set()
        self._copies: dict[int, Tensor] = {}

    def add(self, optimizer: Optimizer, *_) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.grad is None or not p.numel():
                continue
            if piece := self._find(p):
                self._pieces.add(piece)
            else:
                self._copies[id(p)] = p

    def _find(self, p: Tensor) -> Piece | None:
        for i, whole in enumerate(self._whole):
            start = (p.data_ptr() - whole.data_ptr()) // whole.element_size()
            if p.device == whole.device and start >= 0 and start + p.numel() <= whole.numel():
                return i, start, start + p.numel()
        return None

    @property
    def pieces(self) -> list[Piece]:
        """Elements that are updated where the weights are, in order; neighbours are one piece."""
        joined: list[Piece] = []
        for i, start, end in sorted(self._pieces):
            if joined and joined[-1][0] == i and start <= joined[-1][2]:
                joined[-1] = i, joined[-1][1], max(end, joined[-1][2])
            else:
                joined.append((i, start, end))
        return joined

    @property
    def in_copies(self) -> int:
        """Elements that are updated elsewhere."""
        return sum(p.numel() for p in self._copies.values())

    @property
    def n_elements(self) -> int:
        return sum(end - start for _, start, end in self.pieces) + self.in_copies


@contextmanager
def watch_optimizers(module: nn.Module) -> Iterator[Updated]:
    """Yield a record that fills when an optimizer steps inside the block."""
    updated = Updated(module)
    handle = register_optimizer_step_pre_hook(updated.add)
    try:
        yield updated
    finally:
        handle.remove()
