"""The referee's side of the wall: orders to a host, with a deadline, and a stopwatch that the ranks can't touch.

Nothing that comes back is unpickled: replies are lines of JSON, of a bounded length, read without ever blocking on one.
"""

import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import NoReturn

import psutil

_MARGIN_S = 15.0  # a host that has not answered this long after its own deadline is ended from outside
_PATIENCE_S = 5.0
_LONGEST_LINE = 32 << 20


class CrewError(RuntimeError):
    """The submission's ranks failed; `str` is the launcher's report. `timed_out`: they hung, and would do so again."""

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class ReferenceCrewError(CrewError):
    """The reference's ranks failed, which says nothing of the submission."""


class _Lines:
    """JSON lines out of a pipe or socket."""

    def __init__(self, fd: int, error: type[Exception]) -> None:
        self.fd, self.error, self._buffer = fd, error, b""
        self.ended = False

    def fileno(self) -> int:
        return self.fd

    def poll(self) -> dict | None:
        """Call when the descriptor is readable: the next message once its line is complete. Raises at the end."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self.ended = True
            raise self.error("the processes ended without a reply")
        self._buffer += data
        if len(self._buffer) > _LONGEST_LINE:
            raise self.error("the reply is too long")
        if b"\n" not in self._buffer:
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return dict(json.loads(line))
        except ValueError:
            raise self.error("the reply is not readable") from None


class Crew:
    """A host process and the ranks it starts, one order at a time. `error` is what is raised when they fail.

    A host that still owes a reply when the next order comes is replaced.
    """

    def __init__(self, drills_module: str, error: type[CrewError] = CrewError) -> None:
        self.drills_module, self.error = drills_module, error
        self._start()

    def _start(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="shardlab-crew-", ignore_cleanup_errors=True)
        self._host = subprocess.Popen(
            [sys.executable, "-m", "grading.host", self.drills_module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._home.name,
            env=_clean_environment(self._home.name),
            start_new_session=True,
        )
        self.replies = _Lines(self._host.stdout.fileno(), self.error)
        self._owes_reply, self._deadline = False, 0.0

    def order(self, drill: str, answer: bytes | None, **setting) -> list:
        """Run a drill on fresh ranks, with a pickled answer or the reference; one JSON value a rank.

        `setting` is what `begin` takes: world_size, timeout_s, device, network, and the drill's own arguments.
        """
        self.begin(drill, answer, **setting)
        return self.finish()

    def begin(
        self,
        drill: str,
        answer: bytes | None,
        *,
        world_size: int,
        timeout_s: float,
        device: str = "cpu",
        network: str | None = None,
        **arguments,
    ) -> None:
        if self._owes_reply:
            self.close()
            self._start()
        order = {
            "drill": drill,
            "answer": None if answer is None else base64.b64encode(answer).decode(),
            "world_size": world_size,
            "device": device,
            "network": network,
            "timeout_s": timeout_s,
            "arguments": arguments,
        }
        self._owes_reply, self._deadline = True, time.monotonic() + timeout_s + _MARGIN_S
        with suppress(BrokenPipeError):  # a dead host is noticed when its reply is read
            self._host.stdin.write(json.dumps(order).encode() + b"\n")
            self._host.stdin.flush()

    def finish(self) -> list:
        reply = None
        while reply is None:
            if not select.select([self.replies], [], [], max(0.0, self._deadline - time.monotonic()))[0]:
                raise self.error("the processes did not answer in time and were ended", True)
            reply = self.replies.poll()
        self._owes_reply = False
        if "error" in reply:
            raise self.error(str(reply["error"]), bool(reply.get("timed_out")))
        if not isinstance(reply.get("results"), list):
            raise self.error("the reply is not readable")
        return reply["results"]

    def settle(self) -> None:
        """Give ranks that were told to leave a moment to do so, whatever they reply."""
        if self._owes_reply:
            self._deadline = time.monotonic() + _PATIENCE_S
            with suppress(self.error):
                self.finish()

    def close(self) -> None:
        """End the host and everything that descends from it."""
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._host.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._host.pid, signal.SIGKILL)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._host.wait()
        _wait_until_dead(family)
        with suppress(BrokenPipeError):
            self._host.stdin.close()
        self._host.stdout.close()
        self._home.cleanup()


class Stopwatch:
    """Times laps of a crew from outside: "go" out to every rank, then the wait for every rank's reply.

    The ranks connect to `address`. A lap's order carries a seed drawn a moment ago, and the replies are checked against
    the reference's, so that a rank can't answer before it has done the work.
    """

    def __init__(self, crew: Crew, world_size: int, deadline_s: float) -> None:
        self._crew, self._world_size = crew, world_size
        self._folder = tempfile.TemporaryDirectory(prefix="shardlab-lap-")
        self.address = os.path.join(self._folder.name, "laps")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        self._server.listen()
        self._deadline = time.monotonic() + deadline_s
        self._sockets: list[socket.socket] = []
        self._ranks: dict[int, _Lines] = {}

    def meet(self) -> None:
        """Wait until every rank has connected and said its number."""
        strangers: list[_Lines] = []
        while len(self._ranks) < self._world_size:
            for source in self._wait([self._server, *strangers]):
                if source is self._server:
                    self._sockets.append(self._server.accept()[0])
                    strangers.append(_Lines(self._sockets[-1].fileno(), self._crew.error))
                elif (hello := self._poll(source)) is not None:
                    strangers.remove(source)
                    self._ranks[int(hello["rank"])] = source

    def lap(self, order: dict) -> tuple[float, list[dict]]:
        """Seconds from "go" to the last reply, and the replies in rank order."""
        message, replies = json.dumps(order).encode() + b"\n", {}
        start = time.perf_counter()
        for s in self._sockets:
            s.sendall(message)
        while len(replies) < len(self._ranks):
            waiting = [lines for rank, lines in self._ranks.items() if rank not in replies]
            for source in self._wait(waiting):
                reply = self._poll(source)
                if reply is not None:
                    replies[next(r for r, lines in self._ranks.items() if lines is source)] = reply
        return time.perf_counter() - start, [replies[r] for r in sorted(replies)]

    def _poll(self, source: _Lines) -> dict | None:
        """The rank's message; if it is gone, what the launcher says of it."""
        try:
            return source.poll()
        except self._crew.error:
            if source.ended:
                self._report()
            raise

    def _wait(self, sources: list) -> list:
        """Those that are readable; if the crew reports instead, or time is up, its own error is raised."""
        ready = select.select([*sources, self._crew.replies], [], [], max(0.0, self._deadline - time.monotonic()))[0]
        if not ready or self._crew.replies in ready:
            self._report()
        return ready

    def _report(self) -> NoReturn:
        """Raises what the crew has to say; if it is content, the ranks went too early."""
        self._crew.finish()
        raise self._crew.error("the ranks left before the last lap") from None

    def close(self) -> None:
        """Tell the ranks to leave, by closing their connections."""
        for s in (*self._sockets, self._server):
            s.close()
        self._folder.cleanup()


def _wait_until_dead(processes: list[psutil.Process], timeout_s: float = 5.0) -> None:
    """They are not our children: whoever adopted them may let them lie as zombies for seconds, which is dead enough."""
    deadline = time.monotonic() + timeout_s
    while any(map(_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _clean_environment(home: str) -> dict[str, str]:
    """What a student's process needs and nothing that the grader's environment may hold."""
    kept = {k: os.environ[k] for k in ("PATH", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES") if k in os.environ}
    return kept | {"HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
