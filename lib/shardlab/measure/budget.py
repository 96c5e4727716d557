"""Imitate a GPU of any size on any device: a run raises OutOfMemoryError as soon as its tensors no longer fit.

    with MemoryBudget(12 * MIB, model) as budget:
        train_step(...)                  # torch.OutOfMemoryError: rank 0: 12.4 MiB are live in backward, the budget ...
    budget.peak                          # it is a MemoryTracker, too

[Note: what it leaves out] It counts tensors, as MemoryTracker does. It does not count a kernel's workspace, the caching
allocator's fragmentation, the CUDA context or NCCL. To imitate a whole card, choose a budget that leaves room for them.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from shardlab.measure.ledger import Storage
from shardlab.measure.memory import MemoryTracker

MIB = 2**20


class MemoryBudget(MemoryTracker):
    """Context: a MemoryTracker that raises torch.OutOfMemoryError as soon as more than `n_bytes` are live on `device`.

    Memory that the model holds when the block begins counts, so entering the block may raise.
    """

    def __init__(
        self,
        n_bytes: float,
        module: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(module, optimizer, device=device)
        if not n_bytes > 0:
            raise ValueError(f"a budget is more than 0 bytes, not {n_bytes!r}")
        self.n_bytes = n_bytes
        self._exceeded = False

    def _see(self, storage: torch.UntypedStorage, *, new: bool) -> Storage | None:
        known = super()._see(storage, new=new)
        if self._ledger.live_bytes > self.n_bytes and not self._exceeded:
            self._exceeded = True  # raise once: leaving the block updates the ledger, too
            raise torch.OutOfMemoryError(self._report())
        return known

    def _report(self) -> str:
        who = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
        *_, (_, where, live) = self._replay()
        parts = ", ".join(f"{name} {n / MIB:.2f}" for name, n in live.items() if n)
        return (
            f"{who}{self._ledger.live_bytes / MIB:.2f} MiB are live in {where}, and the budget is "
            f"{self.n_bytes / MIB:.2f} MiB: {parts}"
        )
