"""Watch what a process and all its descendants use, and end them if they use more than their limits."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from grading.boxes.sandbox import count_sockets_and_files, open_files_epoll_locks
from grading.boxes.sandbox.limits import FIRST_TO_GO, Limits
from grading.boxes.sandbox.open_files_epoll_locks import HIDING, IN_FLIGHT
from grading.boxes.sandbox.process_tree_memory import family, held_bytes, is_alive, nameless_bytes

INTERVAL_S = 0.25
FILES_EVERY = 4  # looks between those at open files, which take 30 ms for eight ranks
MOST_DEAD = 10  # times the limit on processes, if zombies are counted too
LONGEST_HIDDEN_S = 1.0  # a process hides its open files
LONGEST_IN_FLIGHT_S = 120.0  # files that may be memory: an honest rank has taken them, or has failed to start


class Guard(threading.Thread):
    """A thread that ends a process and its descendants if they exceed `limits`; `exceeded` then says in words how.

    `memory_files`: they can make files of memory that are in no folder. Nobody sees what is in such a file while it is
    in flight, so it may not be in flight for long. Other files in flight hold little: see `open_files_epoll_locks`.
    """

    def __init__(self, pid: int, limits: Limits, memory_files: bool) -> None:
        super().__init__(daemon=True)
        self._pid, self._limits = pid, limits
        self._longest_s = {HIDING: LONGEST_HIDDEN_S} | ({IN_FLIGHT: LONGEST_IN_FLIGHT_S} if memory_files else {})
        self._since: dict[str, float] = {}  # kind -> when the first of the looks in a row found one
        self._stopped = threading.Event()
        self._looks = 0
        self.exceeded = ""

    def run(self) -> None:
        """Check again and again. Processes that can't be watched are ended too: else breaking the guard would help."""
        while not self._stopped.wait(INTERVAL_S):
            processes = []
            try:
                processes = family(self._pid)
                self.exceeded = self.exceeded or self._judge(processes)
                for process in processes:
                    keep_first_to_go(process.pid)
            except Exception as error:
                self.exceeded = f"what it used could not be seen ({type(error).__name__}: {error})"
            if self.exceeded:
                end_all(processes)

    def _judge(self, processes: list[psutil.Process]) -> str:
        most = self._limits.processes
        if len(processes) > most and (running := sum(map(is_alive, processes))) > most:
            return f"it ran {running} processes at a time, and may run {most}"
        if len(processes) > MOST_DEAD * most:
            return f"it left {len(processes)} processes, and may run {most}"
        for found, most, what in (
            (sum(map(_threads, processes)), self._limits.threads, "threads"),
            (count_sockets_and_files.sockets(processes), self._limits.sockets, "sockets"),
            (count_sockets_and_files.files(processes, self._limits.scratch_bytes), self._limits.files, "files"),
        ):
            if found > most:
                return f"it had {found:,} {what}, and may have {most:,}"
        self._looks += 1
        if self._looks % FILES_EVERY == 0 and (wrong := self._judge_files(processes)):
            return wrong
        used, most = sum(map(held_bytes, processes)) + nameless_bytes(processes), self._limits.memory_bytes
        return f"it held {_gib(used)} of memory, and may hold {_gib(most)}" if used > most else ""

    def _judge_files(self, processes: list[psutil.Process]) -> str:
        kept = open_files_epoll_locks.kept(processes)
        for what, most in (
            (open_files_epoll_locks.OPEN, self._limits.descriptors),
            (open_files_epoll_locks.WATCHED, self._limits.watched),
            (open_files_epoll_locks.LOCKS, self._limits.watched),
        ):
            if kept[what] > most:
                return f"it had {kept[what]:,} {what}, and may have {most:,}"
        now = time.monotonic()
        self._since = {kind: self._since.get(kind, now) for kind in self._longest_s if kept[kind]}
        for kind, since in self._since.items():
            if now - since > self._longest_s[kind]:
                return f"it had {kind} for {self._longest_s[kind]:g} s"
        return ""

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def keep_first_to_go(pid: int) -> None:
    """Let the kernel end this process first when memory runs out, though it may have asked to be spared."""
    with suppress(OSError):
        file = Path("/proc", str(pid), "oom_score_adj")
        if int(file.read_text()) < FIRST_TO_GO:
            file.write_text(str(FIRST_TO_GO))


def end_all(processes: list[psutil.Process]) -> None:
    """Kill processes in this order. With parents first, no parent starts another child meanwhile."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wait_until_dead(processes: list[psutil.Process], timeout_s: float = 5.0) -> None:
    """Wait until processes end. Zombies count as ended: they are not our children, and may be reaped seconds later."""
    deadline = time.monotonic() + timeout_s
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _threads(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return process.num_threads()
    return 0


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.3g} GiB"
