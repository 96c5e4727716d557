"""The launcher's view of one rank: its process, its two pipes, and everything received from it."""

import multiprocessing
import os
import signal
from collections import deque
from contextlib import suppress

from shardlab.launch import rank_main

FORKSERVER = multiprocessing.get_context("forkserver")
_PIPE_BYTES = 1 << 16  # capacity of a pipe; a longer line is shown in pieces


class RankProcess:
    def __init__(self, number: int, show: bool) -> None:
        self.number, self.show = number, show
        self.lifeline, self.remote_lifeline = multiprocessing.Pipe(duplex=True)
        self.output, self.remote_output = multiprocessing.Pipe(duplex=False)
        self.process: multiprocessing.process.BaseProcess | None = None
        self.exit_code: int | None = None
        self.begun = 0  # the step of rank_main.SETUP that it began last
        self.result: bytes | None = None
        self.failure: rank_main.Failure | None = None
        self.whereabouts: rank_main.Whereabouts | None = None
        self.tail: deque[str] = deque(maxlen=60)  # its last lines, for the error message
        self._partial = b""

    def start(self, payload: bytes, environment: dict[str, str], settings: rank_main.Settings) -> None:
        """Start the rank's process. It gets its own ends of the two pipes, and no other rank's."""
        args = (payload, environment, self.remote_lifeline, self.remote_output, settings)
        self.process = FORKSERVER.Process(target=rank_main.main, args=args, name=f"rank {self.number}")
        self.process.start()
        self.remote_lifeline.close()
        self.remote_output.close()

    def ask(self) -> None:
        """Ask the rank where it is; if it can answer, the answer becomes its `whereabouts`."""
        if not self.lifeline.closed:
            with suppress(OSError):
                self.lifeline.send("where are you?")

    def drain(self) -> None:
        """Receive what the rank has sent so far, in bounded time even if it never stops printing."""
        while not self.lifeline.closed and self.lifeline.poll():
            self._receive()
        if not self.output.closed and self.output.poll():
            self._read_output()

    def last_words(self) -> None:
        """Receive the last messages and lines, including a last line without a newline."""
        self.drain()
        if self._partial:
            self._say(self._partial)
        self._partial = b""

    def ended(self) -> None:
        """Note the exit code, after the last messages: a rank that returned must not look as if it had vanished."""
        self.last_words()
        self.exit_code = self.process.exitcode

    def _receive(self) -> None:
        try:
            kind, content = self.lifeline.recv()
        except (EOFError, OSError):
            self.lifeline.close()
            return
        self._hear({"returned": "result", "raised": "failure"}.get(kind, kind), content)

    def _hear(self, kind: str, content) -> None:
        setattr(self, kind, content)

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
    def ready(self) -> bool:
        """True once its device is open and it is connected to the others."""
        return self.begun == len(rank_main.SETUP)

    @property
    def vanished(self) -> bool:
        """True if the process has ended without a result or a traceback."""
        return self.exit_code is not None and self.result is None and self.failure is None

    @property
    def exit_in_words(self) -> str:
        """ "exited with code 3", or "was killed by SIGKILL"; a signal without a name has its number."""
        code, names = self.exit_code, {s.value: s.name for s in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"exited with code {code}"

    @property
    def answered(self) -> bool:
        return bool(self.whereabouts or self.failure or self.exit_code is not None)

    def kill(self) -> None:
        """End the rank and all processes that it started; safe to call at any moment."""
        if self.process and self.process.pid:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
        for end in (self.lifeline, self.remote_lifeline, self.output, self.remote_output):
            end.close()
