"""The processes of live ranks: those of a launch, with one more connection each, on which cells and answers travel."""

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Listener
from typing import Any

from shardlab.launch import blame, rank_main
from shardlab.launch.job import Job
from shardlab.launch.pickling import dumps
from shardlab.launch.rank_process import RankProcess
from shardlive import rank_side
from shardlive.rank_side import Answer, Place


class LiveRank(RankProcess):
    """The notebook's view of a rank: its process and output, the cell that it runs, and what it has answered."""

    def __init__(self, number: int, marker: str) -> None:
        super().__init__(number, show=False)
        self.marker, self.connection = marker, None
        self.cell: int | None = None  # the number of the cell that it runs, until its output has been shown
        self.answer: Answer | None = None  # of this cell, once it has ended
        self.printed_all = False  # all output of this cell is here
        self.lines: list[tuple[float, str]] = []  # printed and not shown yet: when, and what
        self.place: tuple[int, Place] | None = None  # the question's token, and the answer
        self.value: tuple[int, Answer] | None = None

    def tell(self, *message) -> None:
        """Send the rank a message; nothing happens if it has ended."""
        with suppress(OSError, AttributeError):
            self.connection.send(message)

    def begin(self, cell: int, source: str, options: frozenset[str]) -> None:
        """Send the rank a cell."""
        self.cell, self.answer, self.printed_all = cell, None, False
        self.tell("run", cell, source, options)

    @property
    def is_there(self) -> bool:
        return self.exit_code is None and self.connection is not None

    @property
    def is_busy(self) -> bool:
        """Return whether its cell has not ended. The cell of a rank that has ended is over."""
        return self.cell is not None and self.is_there and not (self.answer and self.printed_all)

    @property
    def how_it_ended(self) -> str:
        """Return its exit, in words, and the last line that it printed."""
        code = self.exit_code
        how = "its connection is gone" if code is None else f"exit code {code}"
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else how
        return f"rank {self.number} has ended ({how}{f', {self.tail[-1]}' if self.tail else ''})"

    def _say(self, line: bytes) -> None:
        text, marker, number = line.decode(errors="replace").partition(self.marker)
        if text or not marker:
            self.tail.append(text)
            self.lines.append((time.monotonic(), text))
        self.printed_all = self.printed_all or (bool(marker) and number == str(self.cell))

    def drain(self) -> None:
        super().drain()
        try:
            while self.connection is not None and self.connection.poll():
                kind, *rest = self.connection.recv()
                if kind != "done":
                    setattr(self, kind, rest)
                elif rest[0] == self.cell:
                    self.answer = rest[1]
        except (EOFError, OSError):
            self.connection = None  # the process is ending


class LiveJob(Job):
    """A job whose ranks wait for cells."""

    ranks: list[LiveRank]

    def __init__(self, world_size: int, settings: rank_main.Settings) -> None:
        self.folder = tempfile.mkdtemp(prefix="live-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
        key, marker = secrets.token_bytes(16), secrets.token_hex(8) + " "
        self.listener = Listener(os.path.join(self.folder, "s"), "AF_UNIX", backlog=world_size, authkey=key)
        payload = dumps((rank_side.serve, (self.listener.address, key, marker)))
        super().__init__(payload, world_size, settings, stream=False)
        self.ranks = [LiveRank(r, marker) for r in range(world_size)]

    def connect(self) -> None:
        """Wait until every rank is ready. Raises LaunchError that names the one that is not."""
        self._wait(lambda r: r.ready, rank_main.SETUP_S, blame.not_ready)
        for _ in self.ranks:
            connection = self.listener.accept()
            self.ranks[connection.recv()[1]].connection = connection
        self.listener.close()

    def listen(self, timeout_s: float) -> None:
        """Receive what ranks say and print; wait at most `timeout_s` for the first of it."""
        self._listen(timeout_s)

    def _sources(self) -> dict[Any, Callable[[], None]]:
        return super()._sources() | {r.connection: r.drain for r in self.ranks if r.connection is not None}

    def kill(self) -> None:
        super().kill()
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)
