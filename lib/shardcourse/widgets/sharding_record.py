"""A record of the elements that each rank holds at each moment of a step, found by searching real ranks' memory.

    stories = record_all()      # {strategy: [{moment: Held} of each rank]}

This module does not know how a strategy shards. It recognises each element of a small model by its value: element i of
the parameters is the number i + 4096; its gradient on rank r is i + 16384 (r+1), so the mean over four ranks is
i + 40960; AdamW's first moment, with a beta of 0.5, is 1/2 of that mean after one step and 3/4 after two. A learning
rate of 0 leaves the parameters unchanged. At each moment a rank searches all memory that an operation has touched and
that is still alive, and records the elements that it finds there.
"""

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from shardlab.ddp import DDP
from shardlab.fsdp import FlatParameter, fully_shard
from shardlab.launch import launch
from shardlab.measure.memory_events_outside_dispatch import wait_until_idle
from shardlab.nested_tensors import plain_tensors
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

WORLD_SIZE = 4  # the values of the elements assume it
SHAPES = {"weight": (6, 4), "bias": (6,)}  # of a block; 6 rows do not divide evenly among four ranks
HEAD_SHAPES = {"weight": (10, 4)}
N_BLOCKS = 3
_PARAM, _STEP = 1 << 12, 1 << 14
_MEAN = _STEP * (WORLD_SIZE + 1) / 2
# gloo's reduce_scatter fills its output at every wait(), so only the owner of the work may wait for it.
_FILLS_ITS_OUTPUT = re.compile("all_?gather|all_?reduce")
_LOOK_S = 5e-3  # seconds between two looks at unfinished collectives
KINDS = ("parameters", "local_gradients", "gradients", "optimizer_states")
Interval = tuple[int, int]


def layout() -> dict[str, Interval]:
    """Return the elements [start, end) of each tensor, in the order of the model."""
    names = [f"blocks.{i}.{name}" for i in range(N_BLOCKS) for name in SHAPES] + [f"head.{n}" for n in HEAD_SHAPES]
    shapes = [*SHAPES.values()] * N_BLOCKS + [*HEAD_SHAPES.values()]
    edges = [0, *accumulate(torch.Size(shape).numel() for shape in shapes)]
    return dict(zip(names, zip(edges, edges[1:], strict=False), strict=True))


@dataclass(frozen=True)
class Held:
    """The elements that one rank holds at one moment, as intervals [start, end)."""

    parameters: tuple[Interval, ...]
    local_gradients: tuple[Interval, ...]  # of this rank's own samples
    gradients: tuple[Interval, ...]  # the mean over ranks
    optimizer_states: tuple[Interval, ...]

    def count(self, kind: str) -> int:
        return sum(end - start for start, end in getattr(self, kind))


# ------------------------------------------------------------------------------------------------------------ the model


class Part(nn.Module):
    """A unit of the model, whose parameters and gradients have the values by which elements are recognised."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]], look: Callable[[str], None]) -> None:
        super().__init__()
        self.name, self.look = name, look
        for tensor, shape in shapes.items():
            start, end = layout()[f"{name}.{tensor}"]
            self.register_parameter(tensor, nn.Parameter((torch.arange(start, end) + float(_PARAM)).view(shape)))

    def forward(self, x: Tensor) -> Tensor:
        x = _InBackward.apply(x, self.look, f"backward of {self.name}, gradients made")
        for tensor, p in self.named_parameters(recurse=False):
            x = _Use.apply(x, p, layout()[f"{self.name}.{tensor}"][0])
        self.look(f"forward of {self.name}")
        return _InBackward.apply(x, self.look, f"backward of {self.name}")


class Model(nn.Module):
    def __init__(self, look: Callable[[str], None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Part(f"blocks.{i}", SHAPES, look) for i in range(N_BLOCKS))
        self.head = Part("head", HEAD_SHAPES, look)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Use(torch.autograd.Function):
    """A function that returns x, and whose gradient with respect to `p` has this rank's values."""

    @staticmethod
    def forward(ctx, x, p, first):
        ctx.shape, ctx.first = p.shape, first
        return x + p.sum() * 0

    @staticmethod
    def backward(ctx, grad):
        start = float(ctx.first + _STEP * (dist.get_rank() + 1))
        return grad, torch.arange(start, start + ctx.shape.numel()).view(ctx.shape), None


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, look, moment):
        ctx.look, ctx.moment = look, moment
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.look(ctx.moment)
        return grad, None, None


# ------------------------------------------------------------------------------------------------------- the strategies

_ADAM = {"lr": 0.0, "betas": (0.5, 0.999), "weight_decay": 0.0}
_CAP_MB = 30 * 4 / 2**20  # one block in each bucket


def _zero_1(model: Model) -> tuple[nn.Module, Optimizer]:
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW, bucket_cap_mb=_CAP_MB, **_ADAM)


def _zero_2(model: Model) -> tuple[nn.Module, Optimizer]:
    _, optimizer = _zero_1(model)
    return ShardedDataParallel(model, optimizer), optimizer


def fsdp(model: Model, shard=fully_shard, replicas: int = 1, **options) -> tuple[nn.Module, Optimizer]:
    """Shard every block and the root. `shard` is our `fully_shard` or torch's."""
    names, shape = ("replicate", "shard"), (replicas, WORLD_SIZE // replicas)
    if replicas > 1:
        options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for block in model.blocks:
        shard(block, **options)
    shard(model, **options)
    return model, AdamW(model.parameters(), **_ADAM)


STRATEGIES: dict[str, Callable[[Model], tuple[nn.Module, Optimizer]]] = {
    "DDP": lambda model: (
        DDP(model, bucket_cap_mb=_CAP_MB, gradient_as_bucket_view=True),
        AdamW(model.parameters(), **_ADAM),
    ),
    "ZERO_1": _zero_1,
    "ZERO_2": _zero_2,
    "SHARD_GRAD_OP": lambda model: fsdp(model, reshard_after_forward=False),
    "FULL_SHARD": fsdp,
    "FULL_SHARD, flat parameters": lambda model: fsdp(model, layout=FlatParameter),
    "HYBRID_SHARD, 2 x 2": lambda model: fsdp(model, replicas=2),
}

# ----------------------------------------------------------------------------------------------------------- looking


class _Memory(TorchDispatchMode):
    """A record of all living memory that operations (C++ ones too) have touched, and of unfinished collectives."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref] = {}
        self._under_way: list[dist.Work] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in plain_tensors([args, kwargs, result]):
            storage = t.untyped_storage()  # this object lives as long as its bytes
            self._storages[id(storage)] = weakref.ref(storage)
        if func.namespace == "c10d" and _FILLS_ITS_OUTPUT.search(func.__name__):
            works = [x for x in result if isinstance(x, torch.ScriptObject)] if isinstance(result, tuple) else []
            self._under_way += [dist.Work.unbox(work) for work in works]
        return result

    def numbers(self) -> Iterator[Tensor]:
        """Yield each living piece of memory as float32, after unfinished collectives have completed."""
        while self._under_way:
            if self._under_way[-1].is_completed():
                self._under_way.pop()
            else:
                time.sleep(_LOOK_S)
        wait_until_idle()
        for storage in [ref() for ref in self._storages.values()]:
            if storage is not None and storage.nbytes() and storage.nbytes() % 4 == 0:
                yield torch.empty(0).set_(storage)


def _held(memory: _Memory) -> Held:
    found = {kind: set() for kind in KINDS}
    for values in memory.numbers():
        for kind, elements in _whose(values.double()):
            found[kind].update(elements.tolist())
    return Held(*(_intervals(sorted(found[kind])) for kind in KINDS))


def _whose(values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each kind, and its elements that occur among the values."""
    n = max(end for _, end in layout().values())
    codes = [("parameters", values - _PARAM), ("local_gradients", values - _STEP * (dist.get_rank() + 1))]
    codes += [("gradients", values - _MEAN), *(("optimizer_states", values / part - _MEAN) for part in (1 / 2, 3 / 4))]
    for kind, elements in codes:
        yield kind, elements[(elements >= 0) & (elements < n) & (elements == elements.round())].long()


def _intervals(elements: list[int]) -> tuple[Interval, ...]:
    starts = [e for e, before in zip(elements, [None, *elements], strict=False) if e - 1 != before]
    ends = [e + 1 for e, after in zip(elements, [*elements[1:], None], strict=False) if e + 1 != after]
    return tuple(zip(starts, ends, strict=True))


def record_all(strategies: Sequence[str] = tuple(STRATEGIES)) -> dict[str, list[dict[str, Held]]]:
    """Record each strategy on four ranks: {strategy: [{moment: Held} of each rank]}. Takes about two seconds."""

    def on_a_rank() -> list[dict[str, Held]]:
        return [record(strategy) for strategy in strategies]

    by_rank = launch(on_a_rank, WORLD_SIZE, device="cpu", timeout_s=60, stream=False)
    return {strategy: list(ranks) for strategy, ranks in zip(strategies, zip(*by_rank, strict=True), strict=True)}


def record(strategy: str | Callable[[Model], tuple[nn.Module, Optimizer]]) -> dict[str, Held]:
    """Return {moment: what this rank holds} over the second step. Runs on each of four ranks."""
    story: dict[str, Held] = {}
    memory = _Memory()

    def look(moment: str) -> None:
        with torch._C._DisableTorchDispatch():
            story[moment] = _held(memory)

    wrap = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    with memory:
        model, optimizer = wrap(Model(look))
        for _ in range(2):  # the second step's record replaces the first's, which had no optimizer states yet
            _step(model, optimizer, look)
    return story


def _step(model: nn.Module, optimizer: Optimizer, look: Callable[[str], None]) -> None:
    look("before the step")
    loss = model(torch.zeros(1, requires_grad=True)).sum()
    look("end of forward")
    loss.backward()
    look("end of backward")
    optimizer.step()
    look("after the optimizer's step")
    optimizer.zero_grad()
    look("gradients dropped")
