"""What the programs train: blocks that return their output in odd forms, and keep tensors."""

import dataclasses
from collections import namedtuple

import torch
from torch import Tensor, nn

from shardlab.recompute import checkpoint

DIM = 5
Named = namedtuple("Named", "h other")


@dataclasses.dataclass
class Data:
    h: Tensor


class Plain:
    def __init__(self, h) -> None:
        self.h = h


class Slotted:
    __slots__ = ("h",)

    def __init__(self, h) -> None:
        self.h = h


PACK = {
    "tensor": lambda h: h,
    "tuple": lambda h: (h, None),
    "dict": lambda h: {"h": h, "n": 1},
    "named": lambda h: Named(h, "x"),
    "data": Data,
    "object": Plain,
    "slots": Slotted,
    "list in an object": lambda h: Plain([1, h]),
    "closure": lambda h: lambda: h,  # nobody can see the tensor in it
    "view": lambda h: (h + 1)[:],  # the net writes to it
}


def unpack(x) -> Tensor:
    x = x() if callable(x) and not torch.is_tensor(x) else x
    x = getattr(x, "h", x)
    x = x["h"] if isinstance(x, dict) else x
    x = x[0] if isinstance(x, tuple) else x
    return x[1] if isinstance(x, list) else x


@dataclasses.dataclass(frozen=True)
class BlockSpec:
    output: str = "tensor"
    keeps: str = (
        ""  # a tensor, as an attribute: an auxiliary loss "on the way" to the output or "beside" it, or "unread"
    )
    twice: bool = False  # its linear layer is used twice
    checkpoint: str = ""  # "", "whole", "inside"
    rrelu: bool = False  # saves its slopes before it draws them
    frozen: bool = False
    mark: bool = False  # one parameter has an attribute that decides about its weight decay
    in_place: bool = False  # it writes to its intermediate results
    around: bool = False  # its layer is the child called `module` of a module
    sparse: bool = False  # an embedding with sparse gradients


class Around(nn.Module):
    """Looks like a wrapper: its only child is called `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


class Block(nn.Module):
    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.spec, self.gain = spec, nn.Parameter(torch.ones(DIM))
        self.up = Around(nn.Linear(DIM, DIM)) if spec.around else nn.Linear(DIM, DIM)
        self.side = nn.Linear(DIM, DIM) if spec.keeps == "beside" else None
        self.signs = nn.Embedding(2, DIM, sparse=True) if spec.sparse else None
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        if spec.mark:
            self.gain.no_decay = True
        if spec.frozen:
            self.up.requires_grad_(False)

    @property
    def layer(self) -> nn.Linear:
        return self.up.module if self.spec.around else self.up

    def forward(self, x):
        x = unpack(x)
        x = x if self.signs is None else x + self.signs((x[:, 0] > 0).long())
        run = self.compute
        h = checkpoint(run, x, use_reentrant=False) if self.spec.checkpoint == "inside" else run(x)
        if self.spec.keeps:
            self.auxiliary = (h if self.side is None else self.side(x)).pow(2).mean()
        self.calls += 1
        return PACK[self.spec.output](h)

    def compute(self, x: Tensor) -> Tensor:
        h = self.up(x).tanh_() if self.spec.in_place else torch.tanh(self.up(x))
        h = h * self.gain
        h = h.add_(1) if self.spec.in_place else h
        h = torch.tanh(self.up(h)) if self.spec.twice else h
        return nn.functional.rrelu(h, 0.3, 0.3, training=True) if self.spec.rrelu else h


class Net(nn.Module):
    def __init__(self, specs: tuple[BlockSpec, ...], tied: bool, output: str = "tensor") -> None:
        super().__init__()
        self.output = output
        self.blocks, self.head = nn.ModuleList(Block(spec) for spec in specs), nn.Linear(DIM, DIM)
        self.scale = nn.Parameter(torch.ones(1))
        if tied:
            self.blocks[-1].layer.weight = self.blocks[0].layer.weight

    def forward(self, x: Tensor, skip: int | None = None, breaks: bool = False):
        for i, block in enumerate(self.blocks):
            if i == skip:
                continue
            if breaks and i == len(self.blocks) - 1:
                raise KeyError("broken off")
            if block.spec.checkpoint == "whole":
                x = checkpoint(block, unpack(x), use_reentrant=False)
            else:
                x = block(x)
            x = x.mul_(1.1) if block.spec.output == "view" else x
        return PACK[self.output](self.head(unpack(x)) * self.scale)

    def auxiliary(self, skip: int | None) -> Tensor | float:
        kept = [
            b.auxiliary for i, b in enumerate(self.blocks) if b.spec.keeps in ("on the way", "beside") and i != skip
        ]
        return 0.1 * sum(kept) if kept else 0.0

    @property
    def keeps_itself(self) -> bool:
        """Whether a block may keep the graph of a recomputation, which holds a block: nothing ever frees that."""
        return any(b.spec.keeps for b in self.blocks) and any(b.spec.checkpoint for b in self.blocks)

    @property
    def keeps_graph(self) -> bool:
        """Whether it keeps a tensor that has a history: torch copies none."""
        return any(hasattr(block, "auxiliary") for block in self.blocks)
