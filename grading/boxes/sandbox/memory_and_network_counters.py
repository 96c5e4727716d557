"""Measure a box from outside: the memory of all its processes, and the bytes sent over its network.

The ranks report what they hold and send. A submission runs in the same process as that report and can forge it. The
values here are the kernel's own counts, read from outside the box.
"""

import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import psutil

from grading.boxes.sandbox import locate_network_and_tmpfs
from grading.boxes.sandbox.kernel_buffers import buffered_bytes
from grading.boxes.sandbox.open_files_epoll_locks import unseen
from grading.boxes.sandbox.process_tree_memory import family, held_bytes, nameless_bytes

INTERVAL_S = 0.01
LAST_LOOKS, ALIKE_BYTES = 40, 1 << 20  # bytes at rest: the commonest value of the last looks, rounded to this
NAMELESS_EVERY = 10  # looks between searches for unnamed memory, which are slow, until some is found
UNSEEN_BYTES = 64 << 20  # for a file in flight, as full pipes together, and for a process that hides its files


@dataclass(frozen=True)
class Seen:
    """Bytes of all processes together: the peak, and the amount at rest at the end, while all were still there. Also
    the bytes sent over the loopback, a box's only network. None if a value could not be measured."""

    peak_bytes: int | None = None
    held_bytes: int | None = None
    wire_bytes: int | None = None


class KernelCounters(threading.Thread):
    """A thread that measures a process and all its descendants again and again while its `with` block runs."""

    def __init__(self, pid: int, scratch_bytes: int | None = None) -> None:
        """Measure process `pid`. `scratch_bytes`: size of each temporary folder of a box, if it has its own."""
        super().__init__(daemon=True)
        self._pid, self._scratch_bytes = pid, scratch_bytes
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._peak_bytes, self._most = 0, 0
        self._last: deque[int] = deque(maxlen=LAST_LOOKS)
        self._unseen: Counter[int] = Counter()  # looks by what they did not see
        self._wire_bytes = self._sent()

    def run(self) -> None:
        try:
            self._look()
        except Exception as error:  # `__exit__` raises it: a failed measurement must not read as zero bytes
            self._error = error

    def _look(self) -> None:
        nameless = on_its_way = hidden = 0
        for look in count():
            if self._stopped.wait(INTERVAL_S):
                return
            processes = family(self._pid)
            if nameless or look % NAMELESS_EVERY == 0:
                in_buffers, on_its_way = buffered_bytes(processes)
                nameless = nameless_bytes(processes) + in_buffers
            if look % NAMELESS_EVERY == 0:  # reads about every open file: as slow as all of the above
                hidden = unseen(processes)
                self._unseen[hidden] += 1
            held = sum(map(held_bytes, processes)) + _written_bytes(processes, self._scratch_bytes) + nameless
            self._peak_bytes = max(self._peak_bytes, held)
            if len(processes) > self._most:
                self._most = len(processes)
                self._last.clear()
                self._unseen.clear()  # ranks that start are sent files
            if len(processes) == self._most:
                self._last.append(held + on_its_way + hidden * UNSEEN_BYTES)

    def _sent(self) -> int | None:
        return None if self._scratch_bytes is None else _sent_bytes(family(self._pid))

    @property
    def seen(self) -> Seen:
        """Return the measurements; call it after the block. Without Linux's /proc no memory is seen."""
        usual = self._unseen.most_common(1)[0][0] if self._unseen else 0
        return Seen(self._peak_bytes + usual * UNSEEN_BYTES or None, self._at_rest(), self._wire_bytes)

    def _at_rest(self) -> int | None:
        alike = Counter(round(n / ALIKE_BYTES) for n in self._last)
        return alike.most_common(1)[0][0] * ALIKE_BYTES if alike else None

    def __enter__(self) -> "KernelCounters":
        self.start()
        return self

    def __exit__(self, raised: type[BaseException] | None, *_) -> None:
        self._stopped.set()
        self.join()
        if raised:
            return  # the block's own error says more
        if self._error:
            raise ValueError(f"the counters could not be read any more: {self._error!r}") from self._error
        if self._wire_bytes is not None:
            self._wire_bytes = self._sent() - self._wire_bytes


def _written_bytes(processes: list[psutil.Process], size_bytes: int | None) -> int:
    """Bytes written to a box's temporary folders of `size_bytes` each, whose memory belongs to no process: contents,
    and 1 KiB for each file and for each KiB of its attributes (xattr)."""
    of_box = locate_network_and_tmpfs.folders(processes, size_bytes) if size_bytes else ()
    return sum(
        (about.f_blocks - about.f_bfree) * about.f_frsize + (about.f_files - about.f_ffree << 10) for about in of_box
    )


def _sent_bytes(processes: list[psutil.Process]) -> int:
    """Bytes sent over a box's loopback since it was made; 0 while it still has our network."""
    if about := locate_network_and_tmpfs.network(processes):
        with suppress(OSError, IndexError):
            for line in (about / "dev").read_text(errors="replace").splitlines():
                name, _, counters = line.partition(":")
                if name.strip() == "lo":
                    return int(counters.split()[8])
    return 0
