"""Time laps of a launcher from outside, by a clock that its ranks can't change."""

import json
import secrets
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from grading.boxes.rank_launcher_client import RankLauncher
from grading.boxes.sandbox.bounded_json_lines import Lines

_MEET_S, _REPORT_S = 120.0, 15.0


class Stopwatch:
    """A timer of laps: seconds from "go" to every rank until every rank has replied.

    The ranks connect to `address`. The order of each lap carries a new random seed, and the replies are checked against
    the reference's, so a rank can't answer before it has done the work.
    """

    def __init__(self, launcher: RankLauncher, world_size: int) -> None:
        self._launcher, self._world_size = launcher, world_size
        self.address = str(launcher.shared / secrets.token_hex(4))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen()
        self._deadline = time.monotonic() + _MEET_S
        self._sockets: list[socket.socket] = []
        self._ranks: dict[int, Lines] = {}

    def meet(self) -> None:
        """Wait until every rank has connected and sent its number. There are never more connections than ranks."""
        strangers: list[Lines] = []
        while len(self._ranks) < self._world_size:
            doors = [self._server] if len(self._sockets) < self._world_size else []
            for source in self._wait([*doors, *strangers]):
                if source is self._server:
                    self._sockets.append(self._server.accept()[0])
                    strangers.append(Lines(self._sockets[-1].fileno(), self._launcher.most_values))
                elif (hello := self._poll(source)) is not None:
                    strangers.remove(source)
                    self._ranks[self._number(hello)] = source

    def _number(self, hello: dict) -> int:
        rank = hello.get("rank")
        if type(rank) is not int or rank not in range(self._world_size) or rank in self._ranks:
            self._launcher.fail("a rank did not say its number")
        return rank

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let the ranks run in this block. Before and after it, all their processes are stopped."""
        self._launcher.thaw()
        yield
        self._launcher.freeze()

    def lap(self, order: dict, deadline_s: float) -> tuple[float, list[dict]]:
        """Send an order to all ranks. Return the seconds until the last reply, and the replies in rank order."""
        message, replies = json.dumps(order).encode() + b"\n", {}
        self._deadline = time.monotonic() + deadline_s
        start = time.perf_counter()
        for s in self._sockets:
            with suppress(OSError):  # a rank that is gone is noticed when its reply is read
                s.sendall(message)
        while len(replies) < len(self._ranks):
            waiting = [lines for rank, lines in self._ranks.items() if rank not in replies]
            for source in self._wait(waiting):
                reply = self._poll(source)
                if reply is not None:
                    replies[next(r for r, lines in self._ranks.items() if lines is source)] = reply
        return time.perf_counter() - start, [replies[r] for r in sorted(replies)]

    def _poll(self, source: Lines) -> dict | None:
        """Return a rank's message, or None if it is not complete. If the rank is gone, raise the launcher's report."""
        try:
            return source.poll()
        except EOFError:
            self._report()
        except ValueError as error:
            self._launcher.fail(str(error))

    def _wait(self, sources: list) -> list:
        """Return the sources that are readable. If the launcher reports an error, or time is up, raise it."""
        ready = select.select([*sources, self._launcher.replies], [], [], max(0.0, self._deadline - time.monotonic()))[
            0
        ]
        if self._launcher.replies in ready:
            self._report()
        if not ready:
            self._launcher.fail("a rank did not end its lap in time, and was ended", timed_out=True)
        return ready

    def _report(self) -> NoReturn:
        """Raise the error that the launcher reports; if it reports none, raise that the ranks left too early."""
        self._launcher.hurry(_REPORT_S)
        self._launcher.finish()
        self._launcher.fail("the ranks left before the last lap")

    def close(self) -> None:
        """Tell the ranks to leave, by closing their connections."""
        for s in (*self._sockets, self._server):
            s.close()
