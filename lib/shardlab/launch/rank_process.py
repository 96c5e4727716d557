"""The launcher's view of one rank: its process, its two pipes, and what came out of them."""

import multiprocessing
import os
import signal
from collections import deque
from contextlib import suppress

from shardlab.launch import rank_main

_PIPE_BYTES = 1 << 16  # as much as a pipe holds; a longer line is shown in pieces


class RankProcess:
    def __init__(self, number: int, show: bool) -> None:
        self.number, self.show = number, show
        self.lifeline, self.remote_lifeline = multiprocessing.Pipe(duplex=True)
        self.output, self.remote_output = multiprocessing.Pipe(duplex=False)
        self.process: multiprocessing.process.BaseProcess | None = None
        self.exit_code: int | None = None
        self.result: bytes | None = None
        self.failure: rank_main.Failure | None = None
        self.whereabouts: rank_main.Whereabouts | None = None
        self.tail: deque[str] = deque(maxlen=60)  # its last lines, for the error message
        self._partial = b""

    def started(self, process: multiprocessing.process.BaseProcess) -> None:
        self.process = process
        self.remote_lifeline.close()
        self.remote_output.close()

    def ask(self) -> None:
        """Its answer, if it can give one, will be its `whereabouts`."""
        if not self.lifeline.closed:
            with suppress(OSError):
                self.lifeline.send("where are you?")

    def drain(self) -> None:
        """Take what it has said so far, in bounded time even if it never stops talking."""
        while not self.lifeline.closed and self.lifeline.poll():
            self._receive()
        if not self.output.closed and self.output.poll():
            self._read_output()

    def last_words(self) -> None:
        """Take the end of what it said, a line without its newline included."""
        self.drain()
        if self._partial:
            self._say(self._partial)
        self._partial = b""

    def ended(self) -> None:
        """Its process is gone. Its messages come first: a rank that returned must not look as if it had vanished."""
        self.last_words()
        self.exit_code = self.process.exitcode

    def _receive(self) -> None:
        try:
            kind, content = self.lifeline.recv()
        except (EOFError, OSError):
            self.lifeline.close()
            return
        setattr(self, {"returned": "result", "raised": "failure"}.get(kind, kind), content)

    def _read_output(self) -> None:
        data = os.read(self.output.fileno(), _PIPE_BYTES)
        if not data:
            self.output.close()
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _PIPE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self._say(line)

    def _say(self, line: bytes) -> None:
        self.tail.append(line.decode(errors="replace"))
        if self.show:
            print(f"[rank {self.number}] {self.tail[-1]}", flush=True)

    @property
    def vanished(self) -> bool:
        """Gone without a result or a traceback."""
        return self.exit_code is not None and self.result is None and self.failure is None

    @property
    def answered(self) -> bool:
        return bool(self.whereabouts or self.failure or self.exit_code is not None)

    def kill(self) -> None:
        """End the rank and whatever it started; safe to call at any moment."""
        if self.process:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
        for end in (self.lifeline, self.remote_lifeline, self.output, self.remote_output):
            end.close()
