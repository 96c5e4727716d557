"""The launcher's side: start N ranks, watch their pipes, their processes and the clock, and end them all."""

import functools
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from shardlab.launch import rank_at_fault, rank_main
from shardlab.launch.rank_process import FORKSERVER, RankProcess

_starting = threading.Lock()  # if two threads hid the main module at once, they would lose it
_GRACE_S = 1.0  # time for ranks to say where they are after a failure


class Job:
    """One launch: N ranks, the files they need, and the loop that watches them."""

    def __init__(self, payload: bytes, ranks: Sequence[RankProcess], settings: rank_main.Settings) -> None:
        self.payload, self.ranks, self.settings = payload, ranks, settings
        self.port = _free_port()
        self.files = tempfile.TemporaryDirectory(prefix="shardlab-")

    def start(self) -> None:
        """Start a process for every rank, forked from a server that has torch imported already."""
        with _starting, _main_module_hidden():
            _wait_until_warm()
            for r in self.ranks:
                r.start(self.payload, self._environment(r.number), self.settings)

    def _environment(self, number: int) -> dict[str, str]:
        """Environment variables of one rank: those that torchrun would set, and some more."""
        world_size, loopback = str(len(self.ranks)), "lo0" if sys.platform == "darwin" else "lo"
        return {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",  # some libraries read it; the ranks meet in a file
            "MASTER_PORT": str(self.port),
            rank_main.MEETING_PLACE: os.path.join(self.files.name, "store"),
            "TORCHELASTIC_RUN_ID": "shardlab",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "OMP_NUM_THREADS": str(self.settings.threads),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
            "SHARDLAB_DEVICE": self.settings.device,
        } | ({"CUDA_VISIBLE_DEVICES": ""} if self.settings.device == "cpu" else {})  # or fully_shard would use the GPUs

    def results(self, timeout_s: float) -> list[Any]:
        """Return the results when every rank has returned; raise LaunchError as soon as one rank can't return.

        `timeout_s` is counted from when the last rank is ready.
        """
        self._wait(lambda r: r.ready, rank_main.SETUP_S, rank_at_fault.not_ready)
        self._wait(lambda r: r.result is not None, timeout_s, rank_at_fault.hang)
        for r in self.ranks:
            r.last_words()  # do not wait for processes to end: a thread of a rank may never end
        return [cloudpickle.loads(r.result) for r in self.ranks]

    def _wait(self, done: Callable[[RankProcess], bool], within_s: float, too_late: Callable) -> None:
        """Wait until all ranks are done; raise what `too_late` makes of them if that takes longer than `within_s`."""
        deadline = time.monotonic() + within_s
        while not all(map(done, self.ranks)):
            self.listen(deadline - time.monotonic())
            if any(r.failure or r.vanished for r in self.ranks):
                self._ask_whereabouts()
                self._ask_again()
                raise rank_at_fault.failure(self.ranks)
            if time.monotonic() >= deadline:
                self._ask_whereabouts()
                raise too_late(self.ranks, within_s)

    def listen(self, timeout_s: float) -> None:
        """Receive messages, output and exits of the ranks; wait at most `timeout_s` for the first of them."""
        sources = self._sources()
        for source in wait(list(sources), max(0.0, timeout_s)):
            sources[source]()

    def _sources(self) -> dict[Any, Callable[[], None]]:
        """Return what can have something to say, and what receives it."""
        sources: dict[Any, Callable[[], None]] = {}
        for r in self.ranks:
            sources |= {end: r.drain for end in (r.lifeline, r.output) if not end.closed}
            if r.exit_code is None:
                sources[r.process.sentinel] = r.ended
        return sources

    def _ask_whereabouts(self) -> None:
        """Ask every living rank where it is. If a rank can't answer, a signal handler in C dumps its stack."""
        for r in self.ranks:
            if not r.answered:
                r.ask()
        self._listen_until(lambda: all(r.answered for r in self.ranks))
        mute = [r for r in self.ranks if not r.answered]
        for r in mute:
            r.show = False  # the report shows it
            with suppress(OSError):
                os.kill(r.process.pid, signal.SIGUSR1)
        if mute:
            self._listen_until(lambda: False)

    def _ask_again(self) -> None:
        """Ask again for a moment if ranks disagree and too few have called yet to tell which one is wrong."""
        end = time.monotonic() + _GRACE_S
        while rank_at_fault.is_undecided(self.ranks) and time.monotonic() < end:
            for r in self.ranks:
                r.ask()
            self.listen(0.05)

    def _listen_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _GRACE_S
        while not done() and time.monotonic() < end:
            self.listen(min(0.05, end - time.monotonic()))

    def kill(self) -> None:
        """End every rank; free the pipes and the files. A second Ctrl-C waits until that is done."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for r in self.ranks:
                r.kill()
            self.files.cleanup()
        except KeyboardInterrupt:  # another thread, without the mask, took the signal
            self.kill()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def _wait_until_warm() -> None:
    """Wait until the forkserver has imported torch and can fork: now, while Python still handles Ctrl-C."""
    first = FORKSERVER.Process(target=int)
    try:
        first.start()
    except (EOFError, ConnectionError) as error:
        raise OSError(
            "the server from which ranks are forked ended while it imported PyTorch. To see why, run: "
            'python -c "import torch._dynamo, torch.distributed.fsdp"'
        ) from error
    first.join()


@contextmanager
def _main_module_hidden():
    """Keep multiprocessing from importing the caller's script again in every rank: `fn` travels by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
