"""The launcher's side: start N ranks, watch their pipes, their processes and the clock, and end them all."""

import functools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import cloudpickle
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, SignalException, start_processes

from shardlab.launch import blame, rank_main
from shardlab.launch.rank_process import RankProcess

logging.getLogger(PContext.__module__).setLevel(logging.ERROR)  # on a thread it warns that it takes no signal handlers
_starting = threading.Lock()  # two threads that hide the main module at once would lose it
_GRACE_S = 1.0  # how long ranks get to say where they are, once something went wrong


class Job:
    """One launch: N ranks, the files they need, and the loop that watches them."""

    def __init__(self, payload: bytes, world_size: int, settings: rank_main.Settings, stream: bool) -> None:
        self.payload, self.settings = payload, settings
        self.ranks = [RankProcess(r, show=stream) for r in range(world_size)]
        self.context: PContext | None = None
        self.port = _free_port()
        self.files = tempfile.TemporaryDirectory(prefix="shardlab-")

    def start(self) -> None:
        lifelines, outputs = [r.remote_lifeline for r in self.ranks], [r.remote_output for r in self.ranks]
        args = (self.payload, lifelines, outputs, self.settings)
        with _starting, _main_module_hidden():
            _wait_until_warm()
            with _signal_handlers_kept():
                self.context = start_processes(
                    name="rank",
                    entrypoint=rank_main.main,
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
            "MASTER_ADDR": "127.0.0.1",  # some libraries ask for it; the ranks meet in a file
            "MASTER_PORT": str(self.port),
            rank_main.MEETING_PLACE: f"file://{self.files.name}/store",
            "TORCHELASTIC_RUN_ID": "shardlab",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "OMP_NUM_THREADS": str(self.settings.threads),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
            "SHARDLAB_DEVICE": self.settings.device,
        } | ({"CUDA_VISIBLE_DEVICES": ""} if self.settings.device == "cpu" else {})  # else fully_shard takes the GPUs

    def results(self, timeout_s: float) -> list[Any]:
        """Watch until every rank returned; raise LaunchError as soon as one can't any more."""
        deadline = time.monotonic() + timeout_s
        while any(r.result is None for r in self.ranks):
            self._listen(deadline - time.monotonic())
            if any(r.failure or r.vanished for r in self.ranks):
                self._ask_whereabouts()
                self._ask_again()
                raise blame.failure(self.ranks)
            if time.monotonic() >= deadline:
                self._ask_whereabouts()
                raise blame.hang(self.ranks, timeout_s)
        for r in self.ranks:
            r.last_words()  # and wait for nothing else: a thread that never ends must not keep the launcher
        return [cloudpickle.loads(r.result) for r in self.ranks]

    def _listen(self, timeout_s: float) -> None:
        """Take whatever the ranks said or did; wait at most `timeout_s` for it."""
        sources: dict[Any, Callable[[], None]] = {}
        for r in self.ranks:
            sources |= {end: r.drain for end in (r.lifeline, r.output) if not end.closed}
            if r.exit_code is None:
                sources[r.process.sentinel] = r.ended
        for source in wait(list(sources), max(0.0, timeout_s)):
            sources[source]()

    def _ask_whereabouts(self) -> None:
        """Ask every living rank where it is; one that can't answer gets its stack dumped by a signal handler in C."""
        for r in self.ranks:
            if not r.answered:
                r.ask()
        self._listen_until(lambda: all(r.answered for r in self.ranks))
        mute = [r for r in self.ranks if not r.answered]
        for r in mute:
            r.show = False  # the report will show it
            with suppress(OSError):
                os.kill(r.process.pid, signal.SIGUSR1)
        if mute:
            self._listen_until(lambda: False)

    def _ask_again(self) -> None:
        """Ranks disagree, but too few have called yet to tell which of them is odd: give the others a moment."""
        end = time.monotonic() + _GRACE_S
        while blame.is_undecided(self.ranks) and time.monotonic() < end:
            for r in self.ranks:
                r.ask()
            self._listen(0.05)

    def _listen_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _GRACE_S
        while not done() and time.monotonic() < end:
            self._listen(min(0.05, end - time.monotonic()))

    def kill(self) -> None:
        """End every rank; free the pipes and the files. A second Ctrl-C waits until that is done."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for r in self.ranks:
                r.kill()
            if self.context:
                self.context.close(signal.SIGKILL)
            self.files.cleanup()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def _wait_until_warm() -> None:
    """The forkserver forks only when it has imported torch: wait for that here, where Ctrl-C is still Python's."""
    first = multiprocessing.get_context("forkserver").Process(target=int)
    first.start()
    first.join()


@contextmanager
def _signal_handlers_kept():
    """Elastic takes over SIGINT and friends for good; a notebook's interrupt button must go on working."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    caught = None
    try:
        yield
    except SignalException as taken:
        caught = taken.sigval
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)
    if caught is not None:
        signal.raise_signal(caught)  # to whom it belongs


@contextmanager
def _main_module_hidden():
    """Keep multiprocessing from importing the caller's script again in every rank: `fn` travels by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
