"""Contexts that report memory events which no ATen operation shows, and remove their hooks when they end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardlab.measure.wait_for_gloo import wait_until_idle


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
    with (
        module.register_forward_pre_hook(before, prepend=True),
        module.register_forward_hook(after, always_call=True),
    ):
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
