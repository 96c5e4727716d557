"""`launch`, its settings, and the two ways to get ranks: start new processes, or use those that torchrun started."""

import atexit
import getpass
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.forkserver import ensure_running
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from shardlab.launch.job import Job
from shardlab.launch.link_error_to_explanation import explained
from shardlab.launch.notebook_tracebacks import without_frames
from shardlab.launch.pickling import dumps
from shardlab.launch.progress_line import waiting
from shardlab.launch.rank_at_fault import LaunchError
from shardlab.launch.rank_main import SETUP_S, RankNetwork, Settings, process_group
from shardlab.launch.rank_process import RankProcess

# Modules that the forkserver imports before it forks a rank: the import takes seconds, and happens once. The launcher
# itself needs few of them. The flight recorder needs torch._dynamo for its stack traces.
_PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.nn.parallel"]
_PRELOADED += ["shardlab.launch.rank_main"]
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
_warming_up = threading.Lock()  # the environment belongs to all threads
_LONGEST_FOLDER = 60  # characters; a socket's path has at most 107, of which multiprocessing adds 32
_made_with: dict[str, Any] = {}  # under torchrun: settings of the process group of the first launch


def launch(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 300.0,
    device: str | None = None,
    backend: str | None = None,
    network: RankNetwork | None = None,
    threads_per_rank: int = 1,
    stream: bool = True,
) -> list[Any]:
    """Call `fn(*args)` on `world_size` ranks inside one process group; return their results in rank order.

    `fn` may be defined in a notebook cell (it travels by cloudpickle, by value). Arguments and results travel the same
    way, and tensors arrive on the CPU: keep them small. Printed lines appear as they come, marked with their rank,
    unless `stream=False`.

    `device` defaults to "cuda" if there is a GPU, else to "cpu"; the default `backend` depends on it. `network`
    replaces the real network: `shardsim.simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between")`.

    Raises LaunchError, which names the rank, if a rank raises, exits or is killed. If `timeout_s` passes, the error
    shows the last collectives and the stack of every rank without a result. `timeout_s` is counted from when the last
    rank is ready: its device is open, and it has exchanged a first message. No rank is left afterwards, even on Ctrl-C.

    Under torchrun the ranks already exist: `launch` then runs `fn` in this process and returns every rank's result.
    """
    if not callable(fn):
        raise TypeError(f"launch(fn, world_size, ...): fn must be a function, not {type(fn).__name__}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be more than 0 seconds, not {timeout_s!r}")
    settings = settings_of(world_size, device, backend, network, threads_per_rank, timeout_s)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _run_as_existing_rank(fn, args, world_size, settings)
    job = Job(dumps((fn, args)), [RankProcess(r, stream) for r in range(world_size)], settings)
    try:
        warm_up()
        job.start()
        with waiting(f"running on {world_size} ranks"):
            return job.results(timeout_s)
    except LaunchError as error:
        raise explained(error)  # noqa: B904  it is the same error
    except KeyboardInterrupt as error:
        raise without_frames(error, f"interrupted; {world_size} ranks ended")  # noqa: B904  it is the same error
    finally:
        job.kill()


def warm_up() -> None:
    """Start the forkserver and return at once; it imports torch in the background (about 2 s, once per process)."""
    with _warming_up:
        multiprocessing.set_forkserver_preload(_PRELOADED)
        _name_the_user()
        log_level, folder = os.environ.get(_LOG_LEVEL), tempfile.tempdir
        os.environ[_LOG_LEVEL] = "ERROR"  # hides C++ logs about dead peers; the launcher's error is clearer
        if len(tempfile.gettempdir()) > _LONGEST_FOLDER and os.access("/tmp", os.W_OK):
            tempfile.tempdir = "/tmp"
        try:
            ensure_running()
        except OSError as error:
            raise OSError(
                f"the server from which ranks are forked did not start: {error}. It has a socket in the folder for "
                f"temporary files, {tempfile.gettempdir()}: if its name is long, set TMPDIR to a shorter one"
            ) from error
        finally:
            tempfile.tempdir = folder
            os.environ.pop(_LOG_LEVEL) if log_level is None else os.environ.__setitem__(_LOG_LEVEL, log_level)


def _name_the_user() -> None:
    """Give a user a name where the system lists none, as in many containers: torch asks for it, and would fail."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # before and since Python 3.13
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


def local_device() -> torch.device:
    """Return the device of this rank: its GPU, or the CPU."""
    kind = _device_type()
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())


def _device_type() -> str:
    return os.environ.get("SHARDLAB_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def settings_of(world_size, device, backend, network, threads, timeout_s) -> Settings:
    """Return the settings of a job: the device and backend of this machine, unless they are given."""
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of ranks, at least 1, not {world_size!r}")
    device = device or _device_type()
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", not {device!r}')
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError('device="cuda", but torch finds no GPU here')
    if network is not None:
        if device == "cuda":
            raise ValueError('a simulated network carries CPU tensors only: add device="cpu"')
        if not hasattr(network, "install"):
            raise TypeError(f"network={network!r}: pass an object, shardsim.simulated({network!r})")
        network = network.for_ranks(world_size)
        backend = backend or network.backend
    if backend is None:  # NCCL needs one GPU per rank; ranks that share a GPU use gloo
        own_gpu = device == "cuda" and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        backend = "cpu:gloo,cuda:nccl" if own_gpu else "gloo"
    # The launcher sees all ranks, so it reports a stuck collective before the backend's own timeout does.
    return Settings(backend, device, network, threads, collective_timeout_s=SETUP_S + timeout_s + 60)


def _run_as_existing_rank(fn, args, world_size: int, settings: Settings) -> list[Any]:
    actual = int(os.environ["WORLD_SIZE"])
    if world_size != actual:
        raise ValueError(
            f"launch(world_size={world_size}) inside a job of {actual} ranks: "
            f"pass world_size=int(os.environ['WORLD_SIZE']), or start torchrun with {world_size} ranks"
        )
    global _made_with
    asked = vars(replace(settings, collective_timeout_s=0.0))
    if not dist.is_initialized():  # stays open for the next launch: a store can't be used for a second group
        os.environ["SHARDLAB_DEVICE"] = settings.device
        process_group(settings).__enter__()
        atexit.register(_close_group)
        _made_with = asked
    elif changed := [f"{name}={asked[name]!r}" for name in _made_with if asked[name] != _made_with[name]]:
        raise ValueError(
            f"a launch with {', '.join(changed)}: torchrun's ranks keep the process group of their first launch. "
            f"Give every launch the same settings, or start another torchrun"
        )
    results: list[Any] = [None] * world_size
    dist.all_gather_object(results, dumps(fn(*args)))
    return [cloudpickle.loads(r) for r in results]


def _close_group() -> None:
    """Destroy the group before exit, or its threads may abort the process; not after an exception: it could hang."""
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()
