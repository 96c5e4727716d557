"""A program in a box, and its only way to the referee: one line of JSON in, one line of JSON out.

Nothing that comes back is unpickled. Each line has a maximum length, and each wait has a deadline.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

import shardlab
from grading.boxes.sandbox import Box, gpu_access
from grading.boxes.sandbox.bounded_json_lines import MOST_VALUES, NO_REPLY, Lines
from grading.boxes.sandbox.limit_watchdog import Guard, end_all, wait_until_dead
from grading.boxes.sandbox.memory_and_network_counters import KernelCounters
from grading.boxes.sandbox.process_tree_memory import family, is_still
from grading.boxes.sandbox.ran_while_held_still import Ran, ran_ns
from grading.boxes.sandbox.scratch import Scratch

_PATIENCE_S = 5.0
_BETWEEN_LOOKS_S = 0.001  # between checks for processes that still run
_BETWEEN_LOOKS_AT_IT_S = 0.25  # between checks whether a program that owes a reply still runs
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL")


class BoxedProgramError(RuntimeError):
    """No reply came, or an unreadable one. `timed_out`: none came in time, and none would come another time.

    `killed`: processes ended for an unknown reason. Another try may succeed, if the system was short of memory.
    """

    def __init__(self, message: str, timed_out: bool = False, killed: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.killed = killed


class BoxedProgram:
    """A program, `python -m module arguments`, in a box. It takes one order at a time and runs until `close`.

    `shared`: a folder that the program can read and that may hold sockets. `error`: the exception raised when it fails.
    `imports`: modules of `grading` that it imports by name, beside what its own file imports.
    """

    most_values = MOST_VALUES  # of a reply

    def __init__(
        self,
        module: str,
        *arguments: str,
        box: Box,
        error: type[BoxedProgramError] = BoxedProgramError,
        imports: tuple[str, ...] = (),
    ) -> None:
        self.box, self.error = box, error
        self._modules = (module, *imports)
        self._command = [sys.executable, "-m", module, *arguments]
        self._start()

    def _start(self) -> None:
        self._scratch = Scratch()
        home, self.shared = (self._scratch.folder(name) for name in ("home", "shared"))
        self._process = subprocess.Popen(
            self.box.command(self._command, (self.shared,), self._modules),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=home,
            env=clean_environment(self.box.home(str(home)), self.box.own_namespaces),
            start_new_session=True,
        )
        os.set_blocking(self._process.stdin.fileno(), False)  # a program that does not read must not block us
        self._guard = Guard(self._process.pid, self.box.limits, self.box.memory_files) if self.box.limits else None
        if self._guard:
            self._guard.start()
        self.replies = Lines(self._process.stdout.fileno(), self.most_values)
        self._owes_reply, self._deadline = False, 0.0
        self._at_rest: Ran | None = None  # while it is held still

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the ready line that some programs send before they read their first order."""
        self._deadline = time.monotonic() + timeout_s
        self.receive()

    def send(self, order: dict, timeout_s: float) -> None:
        """Send an order. A program that still owes the last reply is replaced first."""
        if self._owes_reply:
            self.close()
            self._start()
        self._owes_reply, self._deadline = True, time.monotonic() + timeout_s
        line, pipe = memoryview(json.dumps(order).encode() + b"\n"), self._process.stdin.fileno()
        with suppress(BrokenPipeError):  # a dead program is noticed when its reply is read
            while line:
                if not select.select([], [pipe], [], max(0.0, self._deadline - time.monotonic()))[1]:
                    self.fail("the processes took no order in time and were ended", timed_out=True)
                line = line[os.write(pipe, line) :]

    def receive(self) -> dict:
        """Return the reply. A program that ends is noticed although a child of it may hold its end of the pipe open."""
        reply, ended = None, False
        while reply is None:
            left_s = max(0.0, self._deadline - time.monotonic())
            if not select.select([self.replies], [], [], 0.0 if ended else min(_BETWEEN_LOOKS_AT_IT_S, left_s))[0]:
                if ended:
                    self.fail(NO_REPLY, killed=True)
                if not left_s:
                    self.fail("the processes did not answer in time and were ended", timed_out=True)
                ended = psutil.Process(self._process.pid).status() == psutil.STATUS_ZOMBIE
                continue
            try:
                reply = self.replies.poll()
            except EOFError as error:
                self.fail(str(error), killed=True)
            except ValueError as error:
                self.fail(str(error))
        self._owes_reply = False
        return reply

    def fail(self, words: str, timed_out: bool = False, killed: bool = False) -> NoReturn:
        """Raise `error` with `words`, or with the guard's reason if the guard ended the box."""
        if exceeded := self._guard.exceeded if self._guard else "":
            raise self.error(f"{exceeded}: its processes were ended", timed_out) from None
        raise self.error(words, timed_out, killed) from None

    def counters(self) -> KernelCounters:
        """Return counters of everything in the box, for a `with` block around the wait for a reply."""
        return KernelCounters(self._process.pid, self.box.limits.scratch_bytes if self.box.own_namespaces else None)

    def settle(self) -> None:
        """Give a program that was told to finish a moment to reply, and ignore the reply."""
        if self._owes_reply:
            self.hurry(_PATIENCE_S)
            with suppress(self.error):
                self.receive()

    def hurry(self, timeout_s: float) -> None:
        """Shorten the deadline of the reply to at most this long from now."""
        self._deadline = min(self._deadline, time.monotonic() + timeout_s)

    def freeze(self) -> None:
        """Stop everything in the box until `thaw`, and what is started meanwhile. Plain processes are not stopped.

        First stop them one by one, which is quick. Then stop all at once, or one could start another and exit. Then
        wait for all to stop.
        """
        if not self.box.ends_with_us:
            return
        deadline = time.monotonic() + _PATIENCE_S
        for process in family(self._process.pid):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            self.box.stop_all(self._process.pid, _PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.fail("its processes did not stop when told to")
        stopped: set[psutil.Process] = set()
        while moving := [p for p in family(self._process.pid) if p not in stopped or not is_still(p)]:
            if time.monotonic() > deadline:
                self.fail("its processes did not stop when told to")
            for process in moving:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped.update(moving)
            time.sleep(_BETWEEN_LOOKS_S)
        self._at_rest = self._ran()

    def thaw(self) -> None:
        """Let what `freeze` has stopped go on. Raises `error` if it ran meanwhile."""
        before, self._at_rest = self._at_rest, None
        went_on = before is not None and self._ran().on_since(before)
        for process in family(self._process.pid):
            with suppress(psutil.NoSuchProcess):
                process.resume()
        if went_on:
            self.fail("its processes went on while they were held still, when it was not their turn")

    def _ran(self) -> Ran:
        """Return how much has run in the box, which is held still. Begin one more process there."""
        ns = ran_ns(family(self._process.pid))
        try:
            return Ran(ns, self.box.next_number(self._process.pid, _PATIENCE_S))
        except subprocess.TimeoutExpired:
            self.fail("its processes did not stop when told to")

    def close(self) -> None:
        """End the program and everything that descends from it."""
        if self._guard:
            self._guard.stop()
        descendants = family(self._process.pid)[1:]
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        end_all(descendants)
        self._process.wait()
        wait_until_dead(descendants)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._scratch.close()


def clean_environment(home: str, own_namespaces: bool) -> dict[str, str]:
    """Return the environment that a student's process needs, without anything else from the grader's environment.

    The process imports our packages from the same place as we do: the box may not show another installed copy.
    """
    kept = {k: os.environ[k] for k in _KEPT_VARIABLES if k in os.environ}
    ours = os.pathsep.join([str(Path(shardlab.__file__).parents[1]), str(Path(__file__).parents[3])])
    python = {"PYTHONPATH": ours, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    somebody = {"LOGNAME": "student"}  # torch asks for a user's name, and a box has no list of users
    return kept | gpu_access.variables(own_network=own_namespaces) | python | somebody | {"HOME": home, "TMPDIR": home}
