"""Named intervals that torch's `record_function` writes: what a rank does, and for which unit.

torch labels some of them itself: an optimizer's step and, in FSDP2, the work for each parameter group
("FSDP::all_gather (blocks.0)"). `label_units` adds the rest in the same way: each unit's forward and backward, waits,
and FSDP1's work for each group, since FSDP1 labels what it does but not for which group. torch.profiler and
`record_timeline` both see all labels, and `meaning` reads them.

[Note: where a unit's backward is] It begins when the gradient of the unit's output is ready, and ends where another
unit's begins. The last one ends in a callback at the end of autograd. DDP waits for its buckets in such a callback,
too, but in C++, where Python can't look: "DDP::finalize" is the time from the first callback to the last.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, _flat_param, _runtime_utils
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

ROOT = "root"
_NAME = re.compile(r"(?P<what>[^ (]+)(?: \((?P<unit>.*)\)|_prefetch for (?P<target>.*))?")
_WRAPPERS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")  # names of only children
_WRAPPER_IN_NAME = re.compile(r"(^|\.)(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def meaning(label: str) -> tuple[str, str] | None:
    """(what the host did, for which unit), e.g. ("copy", "blocks.0"); None if the label tells neither."""
    if label.startswith("Optimizer.step#"):
        return "optimizer", ""
    if label.startswith("FullyShardedDataParallel._"):
        return "copy", ""
    if label in ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward"):
        return "forward", ROOT
    match = _NAME.fullmatch(label)
    what = match["what"] if match else ""
    if label == "recompute":  # `shardlab.recompute` does not know for which unit
        return "recompute", ""
    if what in ("forward", "backward", "recompute"):
        return what, match["unit"] or ROOT
    if what.startswith(("FSDP::", "DDP::")):
        return "copy", match["unit"] or match["target"] or ROOT
    return ("wait", "") if what == "wait" else None


@contextmanager
def label_units(module: nn.Module) -> Iterator[None]:
    """Label what runs inside the block: "forward (blocks.0)", "backward (blocks.0)", "recompute (...)", "wait".

    The units are the children of the model inside `module`; for a list of modules, the list's children.
    """
    labels = _Labels(isinstance(module, DistributedDataParallel))
    with ExitStack() as stack:
        for unit, name in _units(module).items():
            stack.enter_context(unit.register_forward_pre_hook(labels.pre_forward(name), prepend=True))
            stack.enter_context(unit.register_forward_hook(labels.post_forward(name), always_call=True))
        for work in (dist.Work, *dist.Work.__subclasses__()):
            if "wait" in vars(work):
                stack.enter_context(_wrapped(work, "wait", _wait))
            if "wait_for_data" in vars(work):  # work of a simulated network
                stack.enter_context(_wrapped(work, "wait_for_data", lambda *_: "wait"))
        if any(isinstance(m, FullyShardedDataParallel) for m in module.modules()):
            stack.enter_context(_fsdp1_labelled(module))
        yield


def _wait(work: dist.Work, *_) -> str:
    """Label of a wait. A simulated network's work has its own: in a side stream, `wait` does not block the host."""
    return getattr(work, "wait_label", "wait")


def _units(module: nn.Module) -> dict[nn.Module, str]:
    root = _unwrapped(module)
    units = {root: ROOT}

    def enter(parent: nn.Module, prefix: str) -> None:
        for name, child in parent.named_children():
            if isinstance(child, _CONTAINERS):
                enter(child, f"{prefix}{name}.")
            else:
                units[_unwrapped(child)] = f"{prefix}{name}"

    enter(root, "")
    return units


def _unwrapped(module: nn.Module) -> nn.Module:
    children = dict(module.named_children())
    while len(children) == 1 and (inner := next(iter(children))) in _WRAPPERS:
        module = children[inner]
        children = dict(module.named_children())
    return module


class _Labels:
    """Hooks that open and close labels. Open labels are nested: the root's contains its units', backward's all."""

    def __init__(self, is_ddp: bool) -> None:
        self.is_ddp = is_ddp
        self.open: list[tuple[str, record_function]] = []
        self.backward: list[record_function] = []  # the whole backward's, then the current unit's

    def pre_forward(self, name: str) -> Callable:
        def hook(*_) -> None:
            what = "recompute" if _inside_backward() else "forward"
            self.open.append((name, _entered(f"{what} ({name})")))

        return hook

    def post_forward(self, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output) -> None:
            self._close(name)
            for t in tree_leaves(output):
                if isinstance(t, torch.Tensor) and t.requires_grad:
                    t.register_hook(lambda _: self._backward_enters(name))

        return hook

    def _close(self, name: str | None = None) -> None:
        """Close the label `name` and those inside it, which an exception may have left open; without a name, all."""
        while self.open:
            innermost, record = self.open.pop()
            _exit(record)
            if innermost == name:
                break

    def _backward_enters(self, name: str) -> None:
        self._close()  # labels of a recomputation that stopped early: backward had all it needs
        if not self.backward:
            self.backward.append(_entered(f"backward ({ROOT})"))
            _after_backward(self._backward_computed)
        self._leave_unit()
        if name != ROOT:
            self.backward.append(_entered(f"backward ({name})"))

    def _leave_unit(self) -> None:
        while len(self.backward) > 1:
            _exit(self.backward.pop())

    def _backward_computed(self) -> None:
        self._leave_unit()
        if self.is_ddp:
            self.backward.append(_entered("DDP::finalize"))
        _after_backward(self._backward_done)  # after the callbacks of DDP and FSDP

    def _backward_done(self) -> None:
        while self.backward:
            _exit(self.backward.pop())


def _entered(label: str) -> record_function:
    record = record_function(label)
    record.__enter__()
    return record


def _exit(record: record_function) -> None:
    record.__exit__(None, None, None)


def _inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _after_backward(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


@contextmanager
def _fsdp1_labelled(module: nn.Module) -> Iterator[None]:
    """Label FSDP1's all_gathers and reductions as FSDP2 labels its own."""
    names = {m: _WRAPPER_IN_NAME.sub("", name).strip(".") or ROOT for name, m in module.named_modules()}

    def served(what: str) -> Callable[..., str]:
        return lambda *args: f"FSDP::{what} ({names.get(_handle(args)._fully_sharded_module, ROOT)})"

    with (
        _wrapped(_flat_param.FlatParamHandle, "_all_gather_flat_param", served("all_gather")),
        _wrapped(_runtime_utils, "_reduce_grad", served("post_backward_reduce")),
        _wrapped(_runtime_utils, "_reduce_grad_no_shard", served("post_backward_reduce")),
    ):
        yield


def _handle(args: tuple) -> _flat_param.FlatParamHandle:
    return next(a for a in args if isinstance(a, _flat_param.FlatParamHandle))


@contextmanager
def _wrapped(owner, name: str, label: Callable[..., str]) -> Iterator[None]:
    original = getattr(owner, name)

    def call(*args, **kwargs):
        with record_function(label(*args)):
            return original(*args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
