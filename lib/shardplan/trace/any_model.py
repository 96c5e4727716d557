"""Trace a step of any torch module, under the same engines as the course's model, on fake or on real ranks.

The model returns its loss, or comes with a loss; otherwise the mean of its output stands for the loss. Units of FSDP
and of recomputation are named by their class.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from shardlab.measure.memory import COLLECTIVE_NAMESPACES, MemoryTracker
from shardlab.nested_tensors import plain_tensors
from shardplan.planned_job import Setup
from shardplan.trace.no_hardware import no_hardware
from shardplan.trace.program import parameters_in, ready_to_train
from shardplan.trace.tracker import OriginTracker, Part
from shardplan.trace.user_code import CannotTrace, in_words, load, with_memory

WARM_UP = 1
KINDS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}
KINDS |= {"broadcast_": "broadcast", "allgather_into_tensor_coalesced_": "all_gather", "allgather_": "all_gather"}


@dataclass(frozen=True)
class Input:
    """Shape and dtype of one input of a micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def read(cls, words: str) -> "Input":
        """Read "8x512" (int64: tokens, if it has two dimensions), "8x3x224x224" (float32) or "8x64:float32"."""
        sizes, _, dtype = words.strip().lower().partition(":")
        numbers = sizes.replace("*", "x").split("x")
        named = getattr(torch, dtype or ("int64" if len(numbers) <= 2 else "float32"), None)
        if not all(n.isdigit() and int(n) for n in numbers) or not isinstance(named, torch.dtype):
            raise ValueError(f"batch={words!r} is no shape, such as 8x512, 8x3x224x224 or 8x64:float32")
        return cls(tuple(map(int, numbers)), named)

    def tensor(self, device: str) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Traced:
    """A traced step of one rank. `messages`: times by (kind, ranks, bytes of the whole)."""

    parts: list[Part]
    messages: dict[tuple[str, int, int], int]
    flops: int  # of a step
    n_params: int
    units: dict[str, int]  # FSDP's, by class
    loss: str
    device: str  # whose kernels ran, or were imitated


class WithLoss(nn.Module):
    """A model and its loss, as one module that returns a number."""

    def __init__(self, model: nn.Module, loss) -> None:
        super().__init__()
        self.model, self.loss, self.words = model, loss, "its own" if loss else ""

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.model(*inputs)
        output = getattr(output, "loss", None) if getattr(output, "loss", None) is not None else output
        loss = self.loss(output) if self.loss else output
        if isinstance(loss, Tensor) and loss.dim() == 0:
            self.words = "its own"
            return loss
        self.words = "the mean of its output, as it returns no loss"
        trained = [t for t in tree_leaves(loss) if isinstance(t, Tensor) and t.requires_grad]
        if not trained:
            raise CannotTrace("the model returns no tensor that requires a gradient: return a loss")
        return torch.stack([t.float().mean() for t in trained]).sum()


def trace_any(source, inputs: Sequence[Input], setup: Setup, wrap: str) -> Traced | str:
    """Trace as rank 0 of a fake job; a problem of the user's code in words. Runs in a process of its own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with no_hardware(setup.world_size):
        try:
            return step_of(source, inputs, setup, wrap, device, "meta")
        except CannotTrace as error:
            return str(error)
        except Exception as error:  # whatever the user's code raises
            return in_words(error, source)


def step_of(source, inputs: Sequence[Input], setup: Setup, wrap: str, device: str, storages: str) -> Traced:
    """Trace a step on this rank, fake or real. `storages`: the device that storages are on."""
    with torch.device(device), parameters_in(setup.strategy):
        model, loss = load(source)
        whole = WithLoss(with_memory(model, device), loss)
    n_params = sum(p.numel() for p in whole.parameters())
    units = units_of(model, wrap)
    program = ready_to_train(whole, units[::-1], setup, device)  # inner units first
    batch = [given.tensor(device) for given in inputs]
    for _ in range(WARM_UP):
        program.train_step(*batch)
    with AnyTracker(program.module, whole, program.optimizer, units, device=storages) as tracker:
        program.train_step(*batch)
    with FlopCounterMode(display=False) as counter:
        program.train_step(*batch)
    kinds = Counter(_name(unit) for unit in units)
    held = tracker.parts(), dict(tracker.messages), counter.get_total_flops()
    return Traced(*held, n_params, dict(kinds), whole.words, device)


def units_of(model: nn.Module, wrap: str) -> list[nn.Module]:
    """Return FSDP's units: "block" (the members of each ModuleList), "whole" (none), or names of classes, by commas."""
    if wrap == "whole":
        return []
    if wrap == "block":
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
        inner = {id(m) for one in lists for m in one.modules() if m is not one}
        return [m for one in lists if id(one) not in inner for m in one if any(True for _ in m.parameters())]
    names, found = wrap.split(","), [m for m in model.modules() if type(m).__name__ in wrap.split(",")]
    classes = {type(m).__name__ for m in model.modules()}
    for name in names:
        if name not in classes:
            near = get_close_matches(name, classes, 1, 0.0)[0]
            raise CannotTrace(f"wrap={name!r}, but the model has no module of that class; did you mean {near!r}?")
    return [m for m in found if m is not model]


class AnyTracker(OriginTracker):
    """An OriginTracker whose parts are the units of any model; it counts messages, too."""

    def __init__(self, module, model, optimizer, units: Sequence[nn.Module], *, device: str) -> None:
        super().__init__(module, model, optimizer, device=device)
        self.units, self.messages = units, Counter()

    def _install_hooks(self, stack: ExitStack) -> None:
        MemoryTracker._install_hooks(self, stack)
        model, enter = self.model, stack.enter_context
        enter(model.register_forward_pre_hook(self._next_micro_batch))
        enter(model.register_forward_pre_hook(self._beginning("forward of the rest"), prepend=True))
        enter(model.register_forward_hook(self._announcing("backward of the rest"), prepend=True))
        for i, unit in enumerate(self.units, 1):
            name = f"{_name(unit)} {i}"
            enter(unit.register_forward_pre_hook(self._beginning(f"forward of {name}"), prepend=True))
            enter(unit.register_forward_hook(self._announcing(f"backward of {name}"), prepend=True))
            enter(unit.register_forward_hook(self._beginning(f"forward after {name}")))

    def _announcing(self, part: str):
        def announce(module, args, output) -> None:
            first = next((t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad), None)
            if first is not None:
                first.register_hook(self._beginning(part))

        return announce

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in COLLECTIVE_NAMESPACES and not self._in_wait:
            kind = KINDS.get(func.overloadpacket.__name__, func.overloadpacket.__name__)
            n_bytes = max((t.numel() * t.element_size() for t in plain_tensors(args)), default=0)
            self.messages[kind, _size(args), n_bytes] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def _size(args: tuple) -> int:
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg).size()
    return dist.get_world_size()


def _name(unit: nn.Module) -> str:
    return type(unit).__name__.removeprefix("FSDP")
