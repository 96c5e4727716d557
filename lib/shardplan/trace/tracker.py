"""A MemoryTracker that also records which operation made each tensor, and in which part of the step."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.measure.ledger import Storage
from shardlab.measure.memory import MemoryTracker
from shardlab.nested_tensors import plain_tensors

BEFORE = "before the step"


@dataclass(frozen=True)
class Kind:
    """Equal tensors of one category, origin and size. The origin is where the storage's first tensor was made."""

    category: str
    operation: str  # that made it: "mm"; "" for tensors from before the step, and for parameters
    shape: tuple[int, ...]
    dtype: str
    part: str  # of the step in which it was made, the same for all blocks: "forward of a block"
    n_bytes: int

    def words(self, n: float) -> str:
        made = f"{self.operation} " if self.operation else ""
        return f"{n:,.0f} x {made}{self.shape} {self.dtype}, {self.part}"


Part = tuple[str, Counter]  # "1: forward of block 3" (of micro-batch 1), and how many of each kind are live in it


class OriginTracker(MemoryTracker):
    """MemoryTracker for a step of `model`, whichever `module` wraps it. `parts()` returns what is live.

    A part of the step begins when a module's forward begins, or when the gradient of its output arrives. `device` is
    where storages are: "meta" for fake tensors of any device.
    """

    def __init__(self, module: nn.Module, model: nn.Module, optimizer: Optimizer, *, device: str) -> None:
        super().__init__(module, optimizer, device=device)
        self.model = model
        self._origins: dict[Storage, tuple[str, tuple[int, ...], str, str]] = {}  # operation, shape, dtype, part
        self._begun: list[tuple[int, str]] = [(0, BEFORE)]  # ledger changes before the part begins, its name
        self._micro_batch = 0

    # The current part of the step

    def _install_hooks(self, stack: ExitStack) -> None:
        super()._install_hooks(stack)
        model, blocks = self.model, [(f"block {i}", b) for i, b in enumerate(self.model.blocks, start=1)]
        stack.enter_context(model.register_forward_pre_hook(self._next_micro_batch))
        for part, module in (("the embedding", model), *blocks, ("the output layer", model.norm)):
            hook = self._beginning(f"forward of {part}")
            stack.enter_context(module.register_forward_pre_hook(hook, prepend=True))
        for part, module in (("the embedding", model.embedding), *blocks, ("the output layer", model)):
            hook = self._announcing(f"backward of {part}")  # before FSDP's own: gathering belongs to the part
            stack.enter_context(module.register_forward_hook(hook, prepend=True))

    def _next_micro_batch(self, *_) -> None:
        self._micro_batch += 1

    def _beginning(self, part: str) -> Callable:
        def begins(*_) -> None:
            name = part if part == "optimizer" else f"{self._micro_batch}: {part}"
            self._begun.append((self._ledger.n_changes, name))

        return begins

    def _announcing(self, part: str) -> Callable:
        def announce(module, args, output: Tensor) -> None:
            output.register_hook(self._beginning(part))

        return announce

    def _pre_step(self, optimizer: Optimizer, *args) -> None:
        if not self._in_optimizer:  # one optimizer may call another
            self._beginning("optimizer")()
        super()._pre_step(optimizer, *args)

    # The operation that made a tensor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if result is not NotImplemented and not self._in_wait:
            self._note("", plain_tensors((args, kwargs or {})))
            self._note(func.overloadpacket.__name__, plain_tensors(result))
        return result

    def _note(self, operation: str, tensors: Iterable[Tensor]) -> None:
        for t in tensors:
            known = self._ledger.known(t.untyped_storage())
            if known and known not in self._origins:
                self._origins[known] = operation, tuple(t.shape), str(t.dtype)[6:], self._part

    def _label_unsharded(self, p: nn.Parameter) -> None:
        """Label the parameter again: FSDP refills the same storage at each gather."""
        super()._label_unsharded(p)
        if known := self._ledger.known(p.untyped_storage()):
            self._origins[known] = "parameter", tuple(p.shape), str(p.dtype)[6:], "gathered"

    @property
    def _part(self) -> str:
        """Name of the current part, without the numbers of block and micro-batch."""
        name = self._begun[-1][1].split(": ")[-1]
        return name.rstrip(" 0123456789").replace(" block", " a block")

    # What is live

    def parts(self) -> list[Part]:
        """Return what is live at each part's fullest moment, in the order of a step."""
        opening, changes = self._ledger.changes()
        fullest = self._fullest(opening, changes)
        live, parts = dict(opening), {}
        for n, (storage, change) in enumerate([(None, 0), *changes]):
            live[storage] = live.get(storage, 0) + change
            if not live[storage]:
                del live[storage]
            for part in fullest.get(n, ()):  # a part that comes again counts where it is fullest
                n_bytes = sum(live.values())
                if n_bytes >= parts.get(part, (0, None))[0]:
                    parts[part] = n_bytes, self._counted(live)
        return [(part, parts[part][1]) for part in dict.fromkeys(part for _, part in self._begun[1:])]

    def _fullest(self, opening, changes) -> dict[int, list[str]]:
        """Map numbers of ledger changes to the parts of the step that are fullest after so many changes."""
        totals = list(accumulate((change for _, change in changes), initial=sum(n_bytes for _, n_bytes in opening)))
        ends = [*(start for start, _ in self._begun[1:]), len(changes)]
        fullest = defaultdict(list)
        for (start, part), end in zip(self._begun, ends, strict=True):
            fullest[max(range(start, end + 1), key=totals.__getitem__)].append(part)
        return fullest

    def _counted(self, live: dict[Storage, int]) -> Counter:
        unknown = "", (), "", BEFORE
        return Counter(Kind(s.category, *self._origins.get(s, unknown), n_bytes) for s, n_bytes in live.items())
