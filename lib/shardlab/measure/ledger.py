"""The ledger of a MemoryTracker: storages that appear, change size and are freed, and the category of each.

A storage's category may become known long after its allocation: only when a parameter holds a tensor do we know that it
is a gradient. The log is therefore replayed at the end, and gives the live bytes at any moment with all categories
known.
"""

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

# In order of precedence: a gradient that is a view of a communication bucket makes that bucket "gradients".
CATEGORIES = (
    "parameters",  # the model's, as this rank holds them between steps (its shards, under FSDP), and its buffers
    "gradients",  # held by a parameter's .grad when backward ends
    "optimizer_states",  # tensors in optimizer.state, and parameters that only the optimizer has (fp32 masters)
    "unsharded",  # whole parameters while they are gathered, and their whole gradients until they are reduced
    "buckets",  # all else that a collective reads or writes
    "activations",  # made in forward, or recomputed, and still there when backward starts to use them
    "temporaries",  # the rest of what was allocated inside the block
    "other",  # the rest of what existed before it
)


@dataclass(frozen=True)
class Memory:
    """Bytes of tensors on one device of one rank at the moment of the peak, by category (see CATEGORIES)."""

    parameters: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    unsharded: int = 0
    buckets: int = 0
    activations: int = 0
    temporaries: int = 0
    other: int = 0
    where: str = ""  # phase of the peak: forward, backward, optimizer, other
    cuda_allocated_bytes: int | None = None  # the caching allocator's own peak, kernels' workspaces included
    cuda_reserved_bytes: int | None = None  # the allocator's peak of memory from the driver, fragmentation included
    # In use outside the allocator: CUDA context, NCCL, other jobs. None where ranks share a card: it can't be told.
    cuda_outside_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        return sum(self.by_category().values())

    def by_category(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in CATEGORIES}

    def __str__(self) -> str:
        parts = [f"{name} {n / 2**20:.2f}" for name, n in self.by_category().items() if n]
        return f"{self.peak_bytes / 2**20:.2f} MiB at the peak, in {self.where}: {', '.join(parts)}"


class Storage:
    """Size and category of one storage; its bytes may be gone."""

    __slots__ = ("category", "nbytes")

    def __init__(self, nbytes: int, category: str) -> None:
        self.nbytes = nbytes  # current size
        self.category = category

    def label(self, category: str) -> None:
        """Set the category, unless the storage already has one that comes earlier in CATEGORIES."""
        self.category = min(self.category, category, key=CATEGORIES.index)


class Ledger:
    """Log of changes in live bytes, in order of time since the ledger began, each with the phase it happened in."""

    def __init__(self) -> None:
        self.phase = "other"  # or forward, backward, optimizer
        self.live_bytes = 0
        self._started = time.perf_counter()
        self._opening: list[tuple[Storage, int]] = []  # live from the beginning, with their bytes at that time
        self._log: list[tuple[float, str, Storage, int]] = []  # seconds, phase, storage, change in bytes
        self._live: dict[int, tuple[Storage, weakref.ref]] = {}  # by id of torch's storage object

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def known(self, storage: torch.UntypedStorage) -> Storage | None:
        """Record of a storage, with its size brought up to date; None if it was never entered."""
        known, _ = self._live.get(id(storage), (None, None))
        if known:
            self._resize(known, storage.nbytes())
        return known

    def enter(self, storage: torch.UntypedStorage, *, new: bool) -> Storage:
        """Begin to follow a storage: allocated just now if `new`, else counted as there from the beginning."""
        nbytes = storage.nbytes()
        known = Storage(0, "temporaries") if new else Storage(nbytes, "other")
        if not new:
            self.live_bytes += nbytes
            self._opening.append((known, nbytes))
        key = id(storage)  # torch's object lives as long as the bytes do
        self._live[key] = known, weakref.ref(storage, lambda _: self._die(key))
        self._resize(known, nbytes)
        return known

    def close(self) -> None:
        """Stop the log: later changes are not entered."""
        self._live.clear()

    def replay(self) -> Iterator[tuple[float, str, dict[str, int]]]:
        """Yield (seconds, phase, live bytes by category) at the start and after every change."""
        now = dict.fromkeys(CATEGORIES, 0)
        for storage, nbytes in self._opening:
            now[storage.category] += nbytes
        yield 0.0, "other", dict(now)
        for seconds, phase, storage, change in list(self._log):
            now[storage.category] += change
            yield seconds, phase, dict(now)

    def changes(self) -> tuple[list[tuple[Storage, int]], list[tuple[Storage, int]]]:
        """(storage, bytes) for those there from the beginning, and (storage, change in bytes) for all later changes."""
        return list(self._opening), [(storage, change) for _, _, storage, change in self._log]

    @property
    def n_changes(self) -> int:
        return len(self._log)

    def _die(self, key: int) -> None:
        if key in self._live:
            known, _ = self._live.pop(key)
            self._resize(known, 0)

    def _resize(self, known: Storage, nbytes: int) -> None:
        if nbytes != known.nbytes:
            self._log.append((self.seconds(), self.phase, known, nbytes - known.nbytes))
            self.live_bytes += nbytes - known.nbytes
            known.nbytes = nbytes
