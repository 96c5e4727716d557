"""Contexts that report memory events which no ATen operation shows, and remove their hooks when they end.

[Note: gloo's thread] `work.wait()` returns as soon as the worker thread says that the collective has finished. The
thread drops its own references to the tensors a moment later: microseconds on an idle machine, milliseconds if more
threads want to run than there are cores. Measure memory only after that, or the time at which a buffer is freed depends
on a race. Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, runLoop.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

WORKER = "(pt_gloo_runloop) "  # in a thread's line in /proc; the thread's state follows
LOOK_S = 200e-6  # between two looks: long enough for a worker that waits for the GIL
AT_MOST_S = 0.1  # a worker may be busy with the next collective
THREADS = Path("/proc/self/task")


@contextmanager
def watch_resizes(see: Callable[[torch.UntypedStorage], object]) -> Iterator[None]:
    """Call `see(storage)` before and after each resize, with which FSDP frees and refills its unsharded parameters."""

    def wrap(original):
        def resize_(storage: torch.UntypedStorage, nbytes: int):
            see(storage)
            result = original(storage, nbytes)
            see(storage)
            return result

        return resize_

    with _replaced(torch.UntypedStorage, "resize_", wrap):
        yield


@contextmanager
def watch_waits(waiting: Callable[[bool], object]) -> Iterator[None]:
    """Call `waiting(True)` before and `waiting(False)` after each Work.wait.

    Copies that gloo makes inside the wait are its own. After the wait, gloo's thread gets time to release our tensors.
    """

    def wrap(original):
        def wait(work, *args, **kwargs):
            waiting(True)
            try:
                return original(work, *args, **kwargs)
            finally:
                waiting(False)
                wait_until_idle()

        return wait

    with _replaced(dist.Work, "wait", wrap):
        yield


@contextmanager
def watch_forward(module: nn.Module, before: Callable, after: Callable) -> Iterator[None]:
    with module.register_forward_pre_hook(before, prepend=True), module.register_forward_hook(after, always_call=True):
        yield


@contextmanager
def watch_steps(before: Callable, after: Callable) -> Iterator[None]:
    """Call `before` and `after` around each step of every torch optimizer, with the optimizer as first argument."""
    with register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after):
        yield


@contextmanager
def _replaced(owner: type, name: str, wrap: Callable) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def wait_until_idle() -> None:
    """Wait until gloo's workers slept at two looks in a row, at most `AT_MOST_S`; without /proc, for two looks."""
    end_s, asleep = time.monotonic() + AT_MOST_S, 0
    while asleep < 2 and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        asleep = 0 if any(map(_runs, THREADS.glob("*/stat"))) else asleep + 1


def _runs(thread: Path) -> bool:
    try:
        return f"{WORKER}R" in thread.read_text()
    except OSError:  # the thread has ended
        return False
