"""The processes of live ranks: those of a launch, whose lifelines carry cells and answers, too."""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from shardlab.launch import rank_at_fault, rank_main
from shardlab.launch.job import Job
from shardlab.launch.pickling import dumps
from shardlab.launch.rank_process import RankProcess
from shardlive.rank_side import Answer, serve


class LiveRank(RankProcess):
    """The notebook's view of a rank: its process and output, the cell that it runs, and what it has answered."""

    def __init__(self, number: int, marker: str) -> None:
        super().__init__(number, show=False)
        self.marker = marker
        self.cell: int | None = None  # the number of the cell that it runs, until its output has been shown
        self.printed = 0  # the number of the last cell all of whose output is here
        self.lines: deque[tuple[float, str]] = deque()  # printed and not shown yet: when, and what
        self.answers: dict[int, Any] = {}  # by the number of the cell or question

    def order(self, *message) -> None:
        """Send the rank a message; nothing happens if it has ended."""
        with suppress(OSError):
            self.lifeline.send(message)

    @property
    def is_there(self) -> bool:
        return self.exit_code is None and not self.failure and not self.lifeline.closed

    @property
    def is_busy(self) -> bool:
        """Return whether its cell has not ended. The cell of a rank that has ended is over."""
        ended = self.cell in self.answers and self.printed == self.cell
        return self.cell is not None and self.is_there and not ended

    @property
    def how_it_ended(self) -> str:
        """Return its exit, in words, and the last line that it printed."""
        how = "its connection is gone" if self.exit_code is None else self.exit_in_words
        return f"rank {self.number} has ended ({how}{f'; its last line: {self.tail[-1]}' if self.tail else ''})"

    def _say(self, line: bytes) -> None:
        text, marker, number = line.decode(errors="replace").partition(self.marker)
        if text or not marker:
            self.tail.append(text)
            self.lines.append((time.monotonic(), text))
        if marker:
            self.printed = int(number)

    def _hear(self, kind: str, content) -> None:
        if kind == "answer":
            number, self.answers[number] = content
        else:
            super()._hear(kind, content)


class LiveJob(Job):
    """A job whose ranks wait for cells and questions. Each has a number of its own."""

    ranks: list[LiveRank]

    def __init__(self, world_size: int, settings: rank_main.Settings) -> None:
        marker = secrets.token_hex(8) + " "
        super().__init__(dumps((serve, (marker,))), [LiveRank(r, marker) for r in range(world_size)], settings)
        self._cells, self._questions = itertools.count(1), itertools.count(-1, -1)

    def start(self) -> None:
        """Start the ranks, and wait until they are ready. Raises LaunchError that names the one that is not."""
        super().start()
        self._wait(lambda r: r.ready, rank_main.SETUP_S, rank_at_fault.not_ready)

    def _environment(self, number: int) -> dict[str, str]:
        """Environment of a rank. NCCL records whether the GPU has come to a collective only if it takes the time."""
        return super()._environment(number) | {"TORCH_NCCL_ENABLE_TIMING": "1"}

    def begin(self, ranks: list[LiveRank], name: str, source: str, options: frozenset[str]) -> None:
        """Send ranks a cell. Its name stands in tracebacks; without one, its number."""
        number = next(self._cells)
        for r in ranks:
            r.cell = number
            r.order("run", number, name, source, options)

    def ended(self) -> dict[int, Answer]:
        """Return the answers of the cells that have ended, by rank, and forget these cells."""
        over = [r for r in self.ranks if r.cell is not None and not r.is_busy]
        found = {r.number: r.answers.pop(r.cell) for r in over if r.cell in r.answers}
        for r in over:
            r.cell = None
        return found

    def ask(self, ranks: Iterable[LiveRank], kind: str, what: Any = "", within_s: float = 1e9) -> dict[int, Any]:
        """Return the answers to a question, by rank: of those ranks that have answered in time, and not ended."""
        number, end = next(self._questions), time.monotonic() + within_s
        for r in ranks:
            r.order(kind, number, what)
        while any(r.is_there and number not in r.answers for r in ranks) and time.monotonic() < end:
            self.listen(0.05)
        return {r.number: r.answers.pop(number) for r in ranks if number in r.answers}
