"""torch's CUDA sanitizer, fed by the stand-in GPU; and what it lacks: memory that is freed too early.

`torch.cuda._sanitizer.EventHandler` knows which work is ordered after which, by streams and events, and finds two accesses
to the same memory that have no order. Here the host is one more stream: work that the host queues is ordered after what the
host did before, and what the host does is ordered only after what it has waited for.

[Note: memory that is freed too early] The caching allocator gives a freed block to the next allocation on the stream that
was current when the block was made. That is safe if all other work on the block is ordered before this stream's next work,
or before a stream's that `record_stream` named. Else another stream may still use the block.
"""

import os
import sys
import threading
from dataclasses import dataclass

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


class Sanitizer:
    def __init__(self) -> None:
        self.handler, self.reports = EventHandler(), []
        self.handler._handle_stream_creation(HOST)
        self._lock = threading.RLock()
        self._hosts_last = 0  # number of the host's last access

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
        with self._lock:
            self.handler._handle_memory_allocation(block.number)

    def freed(self, block: Block) -> None:
        with self._lock:
            info = self.handler.tensors_accessed.accesses.get(block.number)
            accesses = [*info.reads, *([info.write] if info.write else [])] if info else []
            for access in accesses:
                waits = (block.stream, *block.recorded)
                if not any(self.handler.syncs.is_ordered_after(s, access.seq_num, access.stream) for s in waits):
                    self.report(f"memory of stream {block.stream} freed while {_short(access)} may not have run")
            if info:
                self.handler._handle_memory_deallocation(block.number)

    def used_after_free(self, operator: str) -> None:
        self.report(f"{operator} uses memory that resize_ has freed")

    def report(self, what: str) -> None:
        self.reports.append(Report(what, _where()))


def _short(access: Access) -> str:
    name = str(access.operator).split("(")[0]
    return f"{name} on {'the host' if access.stream == HOST else f'stream {access.stream}'} ({access.type.name.lower()})"


def _where() -> str:
    """Return the innermost frames of our library."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        if _OURS in code.co_filename:
            found.append(f"{code.co_filename.split(_OURS)[1]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(found[:4])
