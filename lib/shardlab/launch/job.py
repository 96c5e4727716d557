"""The launcher's side: start N ranks, watch their pipes, their processes and the clock, and end them all."""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import cloudpickle
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, start_processes

from shardlab.launch import blame, rank

_GRACE_S = 1.0  # how long ranks get to say where they are, once something went wrong
_LONGEST_LINE = 1 << 16


class RankProcess:
    """The launcher's view of one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lifeline, self.remote_lifeline = multiprocessing.Pipe(duplex=True)
        self.output, self.remote_output = multiprocessing.Pipe(duplex=False)
        self.process: multiprocessing.process.BaseProcess | None = None
        self.result: bytes | None = None
        self.failure: rank.Failure | None = None
        self.whereabouts: rank.Whereabouts | None = None
        self.tail: deque[str] = deque(maxlen=60)  # its last lines, for the error message
        self._partial = b""

    def started(self, process: multiprocessing.process.BaseProcess) -> None:
        self.process = process
        self.remote_lifeline.close()
        self.remote_output.close()

    def receive(self) -> None:
        """Take one message from the lifeline."""
        try:
            kind, content = self.lifeline.recv()
        except (EOFError, OSError):
            self.lifeline.close()
            return
        setattr(self, {"returned": "result", "raised": "failure"}.get(kind, kind), content)

    def read_output(self, show: bool) -> None:
        data = os.read(self.output.fileno(), _LONGEST_LINE)
        if not data:
            self.output.close()
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._partial and (not data or len(self._partial) > _LONGEST_LINE):
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self.tail.append(line.decode(errors="replace"))
            if show:
                print(f"[rank {self.number}] {self.tail[-1]}", flush=True)

    @property
    def exit_code(self) -> int | None:
        return self.process.exitcode

    @property
    def vanished(self) -> bool:
        """Gone without a result or a traceback."""
        return self.exit_code is not None and self.result is None and self.failure is None

    @property
    def answered(self) -> bool:
        return bool(self.whereabouts or self.failure or self.result is not None or self.exit_code is not None)

    def kill(self) -> None:
        """End the rank and whatever it started; safe to call at any moment."""
        if self.process:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
        for end in (self.lifeline, self.remote_lifeline, self.output, self.remote_output):
            end.close()


class Job:
    """One launch: N ranks, the store where they meet, and the loop that watches them."""

    def __init__(self, payload: bytes, world_size: int, settings: rank.Settings, stream: bool) -> None:
        self.payload, self.settings, self.stream = payload, settings, stream
        self.ranks = [RankProcess(r) for r in range(world_size)]
        self.context: PContext | None = None
        self.files = tempfile.TemporaryDirectory(prefix="shardlab-")
        # Port 0: the system picks a free one, so that two launches at once cannot collide.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self) -> None:
        lifelines, outputs = [r.remote_lifeline for r in self.ranks], [r.remote_output for r in self.ranks]
        args = (self.payload, lifelines, outputs, self.settings)
        with _signal_handlers_kept(), _main_module_hidden():
            self.context = start_processes(
                name="rank",
                entrypoint=rank.main,
                args={r.number: args for r in self.ranks},
                envs={r.number: self._environment(r.number) for r in self.ranks},
                logs_specs=DefaultLogsSpecs(log_dir=self.files.name),
                start_method="forkserver",
            )
        for r, process in zip(self.ranks, self.context._pc.processes, strict=True):
            r.started(process)

    def _environment(self, number: int) -> dict[str, str]:
        """What torchrun would set."""
        world_size, loopback = str(len(self.ranks)), "lo0" if sys.platform == "darwin" else "lo"
        return {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_RUN_ID": "shardlab",
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher serves the store, ranks are its clients
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "OMP_NUM_THREADS": str(self.settings.threads),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
            "SHARDLAB_DEVICE": self.settings.device,
        }

    def results(self, timeout_s: float) -> list[Any]:
        """Watch until every rank returned; raise LaunchError as soon as one can't any more."""
        deadline = time.monotonic() + timeout_s
        while any(r.result is None for r in self.ranks):
            self._listen(deadline - time.monotonic())
            if any(r.failure or r.vanished for r in self.ranks):
                self._ask_whereabouts()
                raise blame.failure(self.ranks)
            if time.monotonic() >= deadline:
                self._ask_whereabouts()
                raise blame.hang(self.ranks, timeout_s)
        while self.context.wait(0) is None:  # all returned: let them exit in peace
            self._listen(0.005)
            if time.monotonic() >= deadline:
                raise blame.hang(self.ranks, timeout_s)
        self._listen(0)
        return [cloudpickle.loads(r.result) for r in self.ranks]

    def _listen(self, timeout_s: float) -> None:
        """Take whatever the ranks said or did; wait at most `timeout_s` for it."""
        sources: dict[Any, Callable[[], None]] = {}
        for r in self.ranks:
            if not r.lifeline.closed:
                sources[r.lifeline] = r.receive
            if not r.output.closed:
                sources[r.output] = lambda r=r: r.read_output(self.stream)
            if r.exit_code is None:
                sources[r.process.sentinel] = lambda: None
        for source in wait(list(sources), max(0.0, timeout_s)):
            sources[source]()

    def _ask_whereabouts(self) -> None:
        """Ask every living rank where it is; one that can't answer gets its stack dumped by a signal handler in C."""
        for r in self.ranks:
            if not r.answered and not r.lifeline.closed:
                with suppress(OSError):
                    r.lifeline.send("where are you?")
        self._listen_until(lambda: all(r.answered for r in self.ranks))
        mute = [r for r in self.ranks if not r.answered]
        for r in mute:
            with suppress(OSError):
                os.kill(r.process.pid, signal.SIGUSR1)
        if mute:
            self._listen_until(lambda: False)

    def _listen_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _GRACE_S
        while not done() and time.monotonic() < end:
            self._listen(min(0.05, end - time.monotonic()))

    def kill(self) -> None:
        """End every rank; free the store's port, the pipes and the files."""
        for r in self.ranks:
            r.kill()
        if self.context:
            self.context.close(signal.SIGKILL)
        del self.store
        self.files.cleanup()


@contextmanager
def _signal_handlers_kept():
    """Elastic takes over SIGINT and friends for good; a notebook's interrupt button must go on working."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


@contextmanager
def _main_module_hidden():
    """Keep multiprocessing from importing the caller's script again in every rank: `fn` travels by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
