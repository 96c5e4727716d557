"""torch's CUDA sanitizer, fed by the stand-in GPU; and what it lacks: memory that is freed too early.

`torch.cuda._sanitizer.EventHandler` knows which work is ordered after which, by streams and events, and finds two
accesses to the same memory that have no order. Here the host is one more stream: work that the host queues is ordered
after what the host did before, and what the host does is ordered only after what it has waited for.

[Note: memory that is freed too early] The caching allocator may give a freed block to the next allocation on the
stream that was current when the block was made. That is safe if what other streams do with the block is ordered
before the stream's work at that time. If `record_stream` named a stream, the allocator waits for what was queued
there before the block was freed.
"""

import os
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass

import torch.cuda._sanitizer as csan
from stand_in_memory import Block
from torch.cuda._sanitizer import Access, EventHandler

HOST = -1
_OURS = f"{os.sep}shardlab{os.sep}"


@dataclass(frozen=True)
class Report:
    """One mistake: what happened, and where our code was."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.where}"


class _NoStack:
    """Stands for the stack traces that torch's sanitizer takes of each kernel: they take most of the time."""

    StackSummary = property(lambda self: self)

    def walk_stack(self, frame):
        return self

    def extract(self, stack, lookup_lines):
        return self

    def reverse(self) -> None:
        return None


csan.traceback = _NoStack()


class Sanitizer:
    def __init__(self) -> None:
        self.handler, self.reports = EventHandler(), []
        self.handler._handle_stream_creation(HOST)
        self._lock = threading.RLock()
        self._hosts_last = 0  # number of the host's last access
        self._may_be_reused: dict[int, list[tuple[Access, str]]] = defaultdict(list)  # by the freed block's stream
        self.gathers_ahead: int | None = None  # all_gathers that the host may have queued and not waited for
        self._gathers: list[tuple[int, int]] = []  # stream and number of each that it has not waited for

    def kernel(self, stream: int, reads: set[int], writes: set[int], operator: str) -> None:
        """Check one kernel on `stream`, or one access by the host, which reads and writes blocks by their numbers."""
        with self._lock:
            syncs = self.handler.syncs
            syncs._ensure_stream_exists(stream)
            if stream != HOST:  # it is queued after what the host did before
                syncs.current_sync_states[stream][HOST] = self._hosts_last
            aliases = dict.fromkeys(reads | writes, [])
            errors = self.handler._handle_kernel_launch(stream, reads - writes, writes, set(), operator, aliases)
            if stream == HOST:
                self._hosts_last = self.handler.seq_num
            for error in errors:
                before, now = error.previous_access, error.current_access
                self.report(f"{_short(now)} has no order after {_short(before)}")

    def allocated(self, block: Block) -> None:
        """Note a new block, which may get the memory of any block of its stream that has been freed."""
        with self._lock:
            for access, where in self._may_be_reused.pop(block.stream, []):
                if not self._is_before(access, block.stream):
                    what = f"memory of stream {block.stream} was freed, and can be used again, before {_short(access)}"
                    self.reports.append(Report(what, where))
            self.handler._handle_memory_allocation(block.number)

    def freed(self, block: Block) -> None:
        with self._lock:
            info = self.handler.tensors_accessed.accesses.get(block.number)
            if info is None:
                return
            accesses = [*info.reads, *([info.write] if info.write else [])]
            late = [a for a in accesses if not any(self._is_before(a, s) for s in (block.stream, *block.recorded))]
            self._may_be_reused[block.stream] += [(access, _where()) for access in late]
            self.handler._handle_memory_deallocation(block.number)

    def _is_before(self, access: Access, stream: int) -> bool:
        return self.handler.syncs.is_ordered_after(stream, access.seq_num, access.stream)

    def gathered(self, stream: int) -> None:
        """Note an all_gather, and report a host that runs ahead: each takes memory."""
        waited = self.handler.syncs.host_sync_state
        self._gathers = [(s, n) for s, n in (*self._gathers, (stream, self.handler.seq_num)) if n > waited.get(s, 0)]
        if self.gathers_ahead is not None and len(self._gathers) > self.gathers_ahead:
            self.report(f"the host has queued more than {self.gathers_ahead} all_gathers")

    def used_after_free(self, operator: str) -> None:
        self.report(f"{operator} uses memory that resize_ has freed")

    def report(self, what: str) -> None:
        self.reports.append(Report(what, _where()))


def _short(access: Access) -> str:
    name = str(access.operator).split("(")[0]
    return (
        f"{name} on {'the host' if access.stream == HOST else f'stream {access.stream}'} ({access.type.name.lower()})"
    )


def _where() -> str:
    """Return the innermost frames of our library."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        if _OURS in code.co_filename:
            found.append(f"{code.co_filename.split(_OURS)[1]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(found[:4])
