"""Tell whether a box that is held still ran all the same: a timer or a file of its own can send it SIGCONT.

The kernel counts how long each thread has run, and numbers all that a box starts. Both are read when the box has
stopped, and again before it goes on.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SPARE_NS = 10_000_000  # of all threads together: the last steps of a thread that is seen as stopped


@dataclass(frozen=True)
class Ran:
    """Nanoseconds that a box's threads have run, and the number that the box gave to the last process of ours in it."""

    ns: int
    number: int | None

    def on_since(self, before: "Ran") -> bool:
        """Return True if the box did more since `before` than come to rest. We have started one process in it."""
        started = None not in (self.number, before.number) and self.number != before.number + 1
        return started or self.ns - before.ns > SPARE_NS


def ran_ns(processes: list[psutil.Process]) -> int:
    """Return how long all threads of these processes have run."""
    ns = 0
    for process in processes:
        for file in Path("/proc", str(process.pid), "task").glob("*/schedstat"):
            with suppress(OSError):
                ns += int(file.read_text().split()[0])
    return ns
