"""Refuse finished engines in a drill: the lab asks for the engine, so torch's and the library's can't be built."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from unittest.mock import patch

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from shardlab import bucketed_backward, ddp

ENGINES = {
    "torch's DistributedDataParallel": (DistributedDataParallel, "__init__"),
    "torch's FullyShardedDataParallel": (FullyShardedDataParallel, "__init__"),
    "the reducer of torch's DistributedDataParallel": (dist, "Reducer"),
    "the library's BucketedBackward, which its engines inherit from,": (bucketed_backward.BucketedBackward, "__init__"),
    "the bucket of the library's DDP": (ddp._Bucket, "__init__"),
}


class RefusedEngine(RuntimeError):
    """A finished engine was used: the student reads this error's message."""


def own_engine(reference: type[nn.Module]) -> Callable:
    """Return a decorator for drills: a submission runs without finished engines, and `reference` in place of None."""

    def decorate(drill: Callable) -> Callable:
        @wraps(drill)
        def run(implementation, *args, **arguments):
            if implementation is None:
                return drill(reference, *args, **arguments)
            with refused():
                return drill(implementation, *args, **arguments)

        return run

    return decorate


@contextmanager
def refused() -> Iterator[None]:
    """Make the finished engines impossible to build inside the block."""
    patches = [patch.object(owner, name, _refusal(engine)) for engine, (owner, name) in ENGINES.items()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def _refusal(engine: str) -> Callable:
    def refuse(*_, **__):
        raise RefusedEngine(f"{engine} is refused in this lab: write the engine yourself")

    return refuse
