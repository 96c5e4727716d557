"""Where a step's memory goes: every block of bytes from birth to death, and what it was for.

    with MemoryTracker(model) as tracker:
        loss = model(tokens, targets); loss.backward(); optimizer.step()
    print(tracker.peak)

Vocabulary. A *storage* is the block of bytes that a tensor and all its views share: the unit in which memory comes and
goes. A *category* is what its bytes are for. The tracker sees storages come and go, and learns from those who
hold them what they are for; the `ledger` keeps the account.

[Note: what it sees] Every ATen operation passes through __torch_dispatch__ on its way to the kernel, those issued in
C++ by autograd, by DDP's reducer and by FSDP included. A storage's Python object lives as long as its bytes, so a weak
reference tells of the death. Not seen: what a kernel or gloo allocates and frees inside one operation, code compiled by
Inductor, and storages from before the block that no operation touches inside it.

Source: torch.distributed._tools.mem_tracker.MemTracker, of which this is the part that a data-parallel course needs.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils.weak import WeakIdKeyDictionary

from shardlab.measure.ledger import Ledger, Memory, Storage
from shardlab.measure.tensors import plain_tensors
from shardlab.measure.watch import watch_forward, watch_resizes, watch_steps, watch_waits

COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")


class MemoryTracker(TorchDispatchMode):
    """Context: account for every storage on `device` that the block allocates or uses.

    `module` tells parameters and gradients; `optimizer` is only needed for states from before the block, when no step
    is taken in it. `device` is that of the module's first parameter; to see the host's side of an offloaded model
    too, nest a second tracker with device="cpu". On a GPU it resets torch.cuda's peak statistics.

    `peak`, `resident` and `timeline()` answer inside the block and after it. A tracker serves one block.
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
        """The first moment at which most bytes were live."""
        _, where, by_category = max(self._replay(), key=lambda moment: sum(moment[2].values()))
        return Memory(**by_category, where=where, **self._cuda)

    @property
    def resident(self) -> dict[str, int]:
        """Bytes by category that are live now, or were when the block ended."""
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
        """Say what the tracker can't find out: tensors that a hand-written optimizer or wrapper keeps to itself.

        With "other", those that are merely there come into the account as well.
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
            self._cuda = {
                "cuda_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
                "cuda_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
                "cuda_outside_bytes": total - free - torch.cuda.memory_reserved(self.device),
            }

    # Storages appear, change size, die

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # a DTensor takes itself apart first; its plain operations come back here
        kwargs = kwargs or {}
        if self._in_wait:
            return func(*args, **kwargs)
        self._update_phase()
        is_new = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...) allocates out of sight, then calls this
        for t in plain_tensors((args, kwargs)):
            if known := self._see(t.untyped_storage(), new=is_new):
                self._label_by_use(func, t, known)
        result = func(*args, **kwargs)
        for t in plain_tensors(result):
            self._see(t.untyped_storage(), new=True)
        return result

    def _see(self, storage: torch.UntypedStorage, *, new: bool) -> Storage | None:
        """What is known of a storage, brought up to date; None if it lives on another device."""
        known = self._ledger.known(storage)
        if known is None and storage.device.type == self.device.type:
            known = self._ledger.enter(storage, new=new or storage.nbytes() == 0)
            if self._ledger.phase == "forward" or torch.is_grad_enabled():
                self._maybe_saved.append(known)
        return known

    # What they are for

    def _update_phase(self) -> None:
        before, self._ledger.phase = self._ledger.phase, self._current_phase()
        if self._ledger.phase != "backward":
            return
        if before != "backward":  # look at the gradients when it is through, and behind whatever else waits for that
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._label_gradients))
        if not torch.is_grad_enabled():  # enabled there: a checkpoint being recomputed
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
        """A parameter that is not the model's, in memory that came during the block: gathered by FSDP or its like."""
        self.label("unsharded", p)
        if p.requires_grad and p not in self._grad_hooks:
            self._grad_hooks[p] = p.register_hook(lambda gradient: self.label("unsharded", gradient))

    def _label_all(self) -> None:
        for t in plain_tensors([*self.module.parameters(), *self.module.buffers()]):
            known = self._see(t.untyped_storage(), new=False)
            if known and known.category != "unsharded":  # FSDP's stand in the module while they are gathered
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
