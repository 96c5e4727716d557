"""Track a step's memory: every block of bytes from its allocation until it is freed, and what it is for.

    with MemoryTracker(model) as tracker:
        loss = model(tokens, targets); loss.backward(); optimizer.step()
    print(tracker.peak)

Vocabulary. A *storage* is the block of bytes that a tensor and all its views share: memory is allocated and freed in
storages. A *category* is what the bytes are for. The tracker sees storages appear and disappear, and learns their
categories from the objects that hold them; the `ledger` keeps the record.

[Note: what it sees] Every ATen operation passes through __torch_dispatch__ on its way to the kernel, also those that
autograd, DDP's reducer and FSDP issue in C++. A storage's Python object lives as long as its bytes, so a weak
reference tells when the bytes are freed. Not seen: what a kernel or gloo allocates and frees inside one operation, code
compiled by Inductor, and storages from before the block that no operation touches inside it.

Source: torch.distributed._tools.mem_tracker.MemTracker; this is the part of it that a data-parallel course needs.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils.weak import WeakIdKeyDictionary

from shardlab.backward_hooks import only_watching
from shardlab.measure.ledger import Ledger, Memory, Storage
from shardlab.measure.memory_events_outside_dispatch import watch_forward, watch_resizes, watch_steps, watch_waits
from shardlab.nested_tensors import plain_tensors

COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")


class MemoryTracker(TorchDispatchMode):
    """Context that records every storage on `device` that the block allocates or uses.

    `module` identifies parameters and gradients. `optimizer` is only needed for states from before the block, if the
    block takes no step. `device` defaults to that of the module's first parameter. To see an offloaded model's host
    memory too, nest a second tracker with device="cpu". On a GPU the tracker resets torch.cuda's peak statistics.

    `peak`, `resident` and `timeline()` can be read inside the block and after it. A tracker serves one block.
    """

    def __init__(
        self, module: nn.Module, optimizer: Optimizer | None = None, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.module = module
        first = next(module.parameters(), torch.empty(0))
        self.device = torch.device(device) if device else first.device
        self.marks: list[tuple[float, str]] = []  # (seconds, name)
        self._optimizers = [optimizer] if optimizer else []
        self._ledger = Ledger()
        self._maybe_saved: list[Storage] = []  # activations, if they live until backward
        self._grad_hooks = WeakIdKeyDictionary()  # unsharded parameter -> handle
        self._active, self._in_forward, self._in_optimizer, self._in_wait = False, 0, 0, False
        self._cuda: dict[str, int] = {}

    # What the block used

    @property
    def peak(self) -> Memory:
        """Bytes by category at the first moment at which most bytes were live."""
        _, where, by_category = max(self._replay(), key=lambda moment: sum(moment[2].values()))
        return Memory(**by_category, where=where, **self._cuda)

    @property
    def resident(self) -> dict[str, int]:
        """Bytes by category that are live now or, after the block, were live when it ended."""
        return self.timeline()[-1][1]

    def timeline(self) -> list[tuple[float, dict[str, int]]]:
        """(seconds since the block began, bytes by category) at the start and after every change."""
        return [(seconds, by_category) for seconds, _, by_category in self._replay()]

    def phases(self) -> list[tuple[float, str]]:
        """(seconds since the block began, phase that starts then), in order."""
        return [next(moments)[:2] for _, moments in groupby(self._replay(), key=lambda moment: moment[1])]

    def mark(self, name: str) -> None:
        """Name this moment for plots, and look at gradients and optimizer states before they change."""
        self._label_all()
        self.marks.append((self._ledger.seconds(), name))

    def label(self, category: str, *tensors: Tensor) -> None:
        """Label tensors that the tracker can't identify, such as those that a hand-written optimizer or wrapper holds.

        With "other", tensors that no operation uses are recorded as well.
        """
        for t in plain_tensors(tensors):
            if known := self._see(t.untyped_storage(), new=False):
                known.label(category)

    def _replay(self) -> Iterator[tuple[float, str, dict[str, int]]]:
        if self._active:
            self._label_all()
        return self._ledger.replay()

    # The block

    def __enter__(self) -> "MemoryTracker":
        with ExitStack() as stack:
            self._install_hooks(stack)
            self._ledger = Ledger()
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            self._label_all()
            super().__enter__()
            self._active, self._undo = True, stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self._undo.close()
        self._label_all()
        self._read_cuda()
        self._ledger.close()
        self._active = False

    def _install_hooks(self, stack: ExitStack) -> None:
        for watch in (
            watch_resizes(lambda storage: self._see(storage, new=False)),
            watch_waits(self._waiting),
            watch_forward(self.module, self._pre_forward, self._post_forward),
            watch_steps(self._pre_step, self._post_step),
        ):
            stack.enter_context(watch)
        stack.callback(lambda: [handle.remove() for handle in self._grad_hooks.values()])

    def _waiting(self, yes: bool) -> None:
        self._in_wait = yes

    def _pre_forward(self, *_) -> None:
        self._in_forward += 1

    def _post_forward(self, *_) -> None:
        self._in_forward -= 1

    def _pre_step(self, optimizer: Optimizer, *_) -> None:
        self._in_optimizer += 1
        if not any(optimizer is o for o in self._optimizers):
            self._optimizers.append(optimizer)
        self._label_all()

    def _post_step(self, *_) -> None:
        self._label_all()
        self._in_optimizer -= 1

    def _read_cuda(self) -> None:
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            alone = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= torch.cuda.device_count()
            self._cuda = {
                "cuda_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
                "cuda_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "cuda_outside_bytes": total - free - torch.cuda.memory_reserved(self.device) if alone else None,
            }

    # Storages appear, change size, are freed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # a DTensor runs plain operations inside, which come back here
        kwargs = kwargs or {}
        if self._in_wait:
            return func(*args, **kwargs)
        self._update_phase()
        is_new = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...) allocates unseen, then calls this
        for t in plain_tensors((args, kwargs)):
            if known := self._see(t.untyped_storage(), new=is_new):
                self._label_by_use(func, t, known)
        result = func(*args, **kwargs)
        for t in plain_tensors(result):
            self._see(t.untyped_storage(), new=True)
        return result

    def _see(self, storage: torch.UntypedStorage, *, new: bool) -> Storage | None:
        """Record of a storage, entered or brought up to date; None if the storage is on another device."""
        known = self._ledger.known(storage)
        if known is None and storage.device.type == self.device.type:
            known = self._ledger.enter(storage, new=new or storage.nbytes() == 0)
            if self._ledger.phase == "forward" or torch.is_grad_enabled():
                self._maybe_saved.append(known)
        return known

    # Categories of storages

    def _update_phase(self) -> None:
        before, self._ledger.phase = self._ledger.phase, self._current_phase()
        if self._ledger.phase != "backward":
            return
        if before != "backward":  # label gradients when backward ends, after all other callbacks
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._label_gradients))
        if not torch.is_grad_enabled():  # enabled in backward: a checkpoint is recomputed
            for known in self._maybe_saved:
                if known.nbytes and known.category != "other":
                    known.label("activations")
            self._maybe_saved.clear()

    def _current_phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if self._in_forward:
            return "forward"
        if self._in_optimizer:
            return "optimizer"
        return "forward" if torch.is_grad_enabled() else "other"  # a loss computed outside of the module

    def _label_by_use(self, func, t: Tensor, known: Storage) -> None:
        if _is_collective(func):
            known.label("buckets")
        if isinstance(t, nn.Parameter) and known.category in ("unsharded", "buckets", "activations", "temporaries"):
            self._label_unsharded(t)

    def _label_unsharded(self, p: nn.Parameter) -> None:
        """Label a parameter that FSDP or its like gathered (not the model's, new in the block) and its gradients."""
        self.label("unsharded", p)
        if p.requires_grad and p not in self._grad_hooks:
            self._grad_hooks[p] = p.register_hook(only_watching(lambda g: self.label("unsharded", g)))

    def _label_all(self) -> None:
        for t in plain_tensors([*self.module.parameters(), *self.module.buffers()]):
            known = self._see(t.untyped_storage(), new=False)
            if known and known.category != "unsharded":  # FSDP's gathered parameters are in the module, too
                known.label("parameters")
        self._label_gradients()
        for optimizer in self._optimizers:
            self.label("optimizer_states", *optimizer.state.values(), *_params(optimizer))

    def _label_gradients(self) -> None:
        for p in (*self.module.parameters(), *(p for o in self._optimizers for p in _params(o))):
            self.label("gradients", p.grad)


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@cache
def _is_collective(func: torch._ops.OpOverload) -> bool:
    return func.namespace in COLLECTIVE_NAMESPACES
