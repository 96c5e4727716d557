"""One rank's side of `launch`: the function that every rank process runs.

A rank has two pipes to its launcher. The output pipe carries everything that the rank prints, also from C++. The
lifeline carries the rank's result or traceback to the launcher, and the launcher's question "where are you?" to the
rank; what else the launcher sends is in `orders`. When the launcher dies, the lifeline closes and the rank ends itself,
so no rank outlives its launcher.
"""

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle
import torch
import torch.distributed as dist

from shardlab.launch import flight_recorder
from shardlab.launch.pickling import dumps

# File in which the launcher's ranks meet; without it they use torchrun's store. A file needs no port and no name
# server: torch's TCPStore looks up the name of every peer, which takes seconds per launch if that one does not answer.
MEETING_PLACE = "SHARDLAB_MEETING_PLACE"
SETUP_S = 120.0  # for opening devices and connecting; on 8 GPUs that takes up to 10 s
# What a rank does before it is ready, in order. It tells its launcher when it begins the next of them.
SETUP = ("did not get as far as opening its device", "was opening its device", "was meeting the other ranks")
SETUP += ("was in its first collective",)
send: Callable[[tuple[str, Any]], None]  # to the launcher: what it is, and its content. `main` sets it
orders: queue.SimpleQueue = queue.SimpleQueue()  # from the launcher, in this rank: see `shardlive`
_pid = 0  # of this rank
_kept_alive: list = []  # callbacks that C++ holds: Python must not free them


class RankNetwork(Protocol):
    """A network that replaces the real one, such as `shardsim.simulated(...)`."""

    backend: str  # name of the torch.distributed backend that `install` registers

    def for_ranks(self, world_size: int) -> "RankNetwork":
        """Return this network for a job of `world_size` ranks. Raises ValueError if that is impossible."""

    def install(self) -> None:
        """Prepare this rank for the network; called before the rank makes its process group."""


@dataclass(frozen=True)
class Settings:
    """Setup of every rank of one job."""

    backend: str
    device: str  # "cpu" or "cuda"
    network: RankNetwork | None  # instead of the real one
    threads: int  # for torch's CPU kernels
    collective_timeout_s: float


@dataclass(frozen=True)
class Failure:
    """An exception that the rank's function raised."""

    error: str  # "ValueError: ..."
    traceback: str
    at_s: float  # time.monotonic(): one clock for all processes of a machine
    log: list[flight_recorder.Collective]


@dataclass(frozen=True)
class Whereabouts:
    """Answer of a rank to "where are you?"."""

    stack: str  # of the main thread, innermost last
    log: list[flight_recorder.Collective]


def main(payload: bytes, environment: dict[str, str], lifeline: Connection, output: Connection, settings: Settings):
    """Run one rank: the entry point of each process. `payload` is cloudpickle of (fn, args)."""
    os.environ.update(environment)
    os.setsid()  # the rank and whatever it starts are one process group, which the launcher can kill whole
    _redirect_output(output)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # for a rank too stuck to answer on its lifeline
    global send, _pid
    send, _pid = _start_listening(lifeline), os.getpid()
    _before_cpp_terminates(lambda: send(("whereabouts", _whereabouts())))
    try:
        with process_group(settings, tell=lambda n: send(("begun", n))):
            fn, args = cloudpickle.loads(payload)
            result = dumps(fn(*args))
            flush()
            send(("returned", result))  # before the group is destroyed: a rank that waits there must not be blamed
            time.sleep(0.5)  # nor one that still connects to this rank, in a group that both have just made
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the other ranks are waiting
        end_if_forked(error)
        send(("raised", _failure(error)))
        flush()
    threading.Event().wait()  # keep connections open until the launcher ends this rank, or the other ranks fail too


def _redirect_output(output: Connection) -> None:
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output.fileno(), fd)
        setattr(sys, name, open(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False))


def _start_listening(lifeline: Connection):
    """Answer the launcher on a separate thread; return a thread-safe `send`."""
    lock = threading.Lock()

    def send(message) -> None:
        end_if_forked()
        with lock:
            lifeline.send(message)

    def listen() -> None:
        try:
            while message := lifeline.recv():
                if message == "where are you?":
                    send(("whereabouts", _whereabouts()))
                else:
                    orders.put(message)
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # the launcher is gone

    threading.Thread(target=listen, daemon=True, name="lifeline").start()
    return send


def _before_cpp_terminates(report: Callable[[], None]) -> None:
    """Call `report` before C++ ends the process, as gloo's thread does if sizes differ between ranks."""
    try:
        set_terminate = ctypes.CDLL(torch._C.__file__)._ZSt13set_terminatePFvvE  # std::set_terminate
    except (OSError, AttributeError):  # another C++ library: the launcher then learns only the exit code
        return
    handler = ctypes.CFUNCTYPE(None)
    set_terminate.restype, set_terminate.argtypes = handler, [handler]

    def terminate() -> None:
        report()
        default()  # prints the C++ exception and aborts

    _kept_alive.append(handler(terminate))
    default = set_terminate(_kept_alive[-1])


def _whereabouts() -> Whereabouts:
    frame = sys._current_frames()[threading.main_thread().ident]
    return Whereabouts("".join(traceback.format_stack(frame)), flight_recorder.collectives(last=50))


def _failure(error: BaseException) -> Failure:
    """Describe the error, with its traceback without this file's frame."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, inner or error.__traceback__))
    return Failure(cut(said(error), 2_000), cut(text), time.monotonic(), flight_recorder.collectives(last=50))


def said(error: BaseException) -> str:
    """Return "ZeroDivisionError: division by zero", also of an error whose `__str__` fails."""
    words = traceback.format_exception_only(error)[-isinstance(error, SyntaxError)].rstrip(": \n")
    return words.removeprefix(f"{type(error).__module__}.")


def cut(text: str, most: int = 10_000) -> str:
    """Return the text, or its two ends and how much is left out: more would be too much for a browser."""
    half, left_out = most // 2, len(text) - most
    return text if left_out <= 0 else f"{text[:half]} ... {left_out:,} more characters ... {text[-half:]}"


def end_if_forked(error: BaseException | None = None) -> None:
    """End a process that the rank's function has forked, at the end of the function: it must not answer as the rank."""
    if os.getpid() != _pid:
        if error and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        flush()
        os._exit(bool(error and getattr(error, "code", 1)))


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def stay_on_cpu() -> None:
    """Keep torch's fully_shard, if it gets no mesh, from a Mac's or Intel's accelerator, which gloo does not serve.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _init_default_mesh.
    """
    if torch._C._get_accelerator().type not in ("cpu", "cuda"):
        torch._C._get_accelerator = lambda *_: torch.device("cpu")


@contextmanager
def process_group(s: Settings, tell: Callable[[int], None] = lambda n: None) -> Iterator[None]:
    """Set this rank's device and make the default process group. Calls `tell(n)` when step n of `SETUP` begins."""
    flight_recorder.enable()
    torch.set_num_threads(s.threads)
    if s.network is not None:
        s.network.install()
    tell(1)
    if s.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    elif os.environ.get("SHARDLAB_DEVICE") == "cpu":
        stay_on_cpu()
    tell(2)
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # or a rank that ends early leaves while others still connect
    file, n = os.environ.get(MEETING_PLACE), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        s.backend,
        store=dist.FileStore(file, n) if file else None,  # no file:// URL, in which # and ? have a meaning
        rank=int(os.environ["RANK"]),
        world_size=n,
        timeout=timedelta(seconds=s.collective_timeout_s),
    )
    del os.environ["TORCH_DIST_INIT_BARRIER"]
    tell(3)
    if s.device != "cpu":  # NCCL connects in its first collective, and a hang there would leave no record
        first = torch.zeros(1, device=s.device)
        dist.all_reduce(first)
        first.item()  # wait for the device
    tell(len(SETUP))  # ready
    yield  # an error is raised here: destroying would wait for ranks that are stuck
    if dist.is_initialized():
        dist.destroy_process_group()
