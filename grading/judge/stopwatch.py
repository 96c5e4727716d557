"""Laps of a crew timed from outside, by a clock that its ranks can't touch."""

import json
import secrets
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from grading.boxes.ranks import Crew
from grading.boxes.sandbox.lines import Lines

_MEET_S, _REPORT_S = 120.0, 15.0


class Stopwatch:
    """Seconds from "go" out to every rank until every rank has replied.

    The ranks connect to `address`. A lap's order carries a seed drawn a moment ago, and the replies are checked against
    the reference's, so that a rank can't answer before it has done the work.
    """

    def __init__(self, crew: Crew, world_size: int) -> None:
        self._crew, self._world_size = crew, world_size
        self.address = str(crew.shared / secrets.token_hex(4))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen()
        self._deadline = time.monotonic() + _MEET_S
        self._sockets: list[socket.socket] = []
        self._ranks: dict[int, Lines] = {}

    def meet(self) -> None:
        """Wait until every rank has connected and said its number: there are no more connections than ranks."""
        strangers: list[Lines] = []
        while len(self._ranks) < self._world_size:
            doors = [self._server] if len(self._sockets) < self._world_size else []
            for source in self._wait([*doors, *strangers]):
                if source is self._server:
                    self._sockets.append(self._server.accept()[0])
                    strangers.append(Lines(self._sockets[-1].fileno(), self._crew.most_values))
                elif (hello := self._poll(source)) is not None:
                    strangers.remove(source)
                    self._ranks[self._number(hello)] = source

    def _number(self, hello: dict) -> int:
        rank = hello.get("rank")
        if type(rank) is not int or rank not in range(self._world_size) or rank in self._ranks:
            self._crew.fail("a rank did not say its number")
        return rank

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The ranks run in here; before and after it, every process of theirs is held still."""
        self._crew.thaw()
        yield
        self._crew.freeze()

    def lap(self, order: dict, deadline_s: float) -> tuple[float, list[dict]]:
        """Seconds from "go" to the last reply, and the replies in rank order."""
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
        """The rank's message; if it is gone, what the launcher says of it."""
        try:
            return source.poll()
        except EOFError:
            self._report()
        except ValueError as error:
            self._crew.fail(str(error))

    def _wait(self, sources: list) -> list:
        """Those that are readable; if the crew reports instead, or time is up, its own error is raised."""
        ready = select.select([*sources, self._crew.replies], [], [], max(0.0, self._deadline - time.monotonic()))[0]
        if self._crew.replies in ready:
            self._report()
        if not ready:
            self._crew.fail("a rank did not end its lap in time, and was ended", timed_out=True)
        return ready

    def _report(self) -> NoReturn:
        """Raises what the crew has to say; if it is content, the ranks went too early."""
        self._crew.hurry(_REPORT_S)
        self._crew.finish()
        self._crew.fail("the ranks left before the last lap")

    def close(self) -> None:
        """Tell the ranks to leave, by closing their connections."""
        for s in (*self._sockets, self._server):
            s.close()
