"""What a MemoryTracker must hear of and no ATen operation tells: contexts that call back, and leave nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardlab.measure.gloo_threads import wait_until_idle


@contextmanager
def watch_resizes(see: Callable[[torch.UntypedStorage], object]) -> Iterator[None]:
    """`see(storage)` before and after each resize: FSDP frees and refills its unsharded parameters by it."""

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
    """`waiting(True)` before and `waiting(False)` after each Work.wait.

    What gloo copies inside of it is its own; afterwards its thread gets the time to let go of our tensors.
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
    with (
        module.register_forward_pre_hook(before, prepend=True),
        module.register_forward_hook(after, always_call=True),
    ):
        yield


@contextmanager
def watch_steps(before: Callable, after: Callable) -> Iterator[None]:
    """Of every torch optimizer: `before` and `after` get the optimizer first."""
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
