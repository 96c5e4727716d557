"""A process with fake tensors, which have no bytes, in a fake process group: its one rank runs as one of many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


@contextmanager
def no_hardware(world_size: int) -> Iterator[None]:
    """Make this process rank 0 of a fake group until it ends; inside the context all new tensors are fake."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    dist.all_gather_object = _assume_that_ranks_agree
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    ShardingPropagator._propagate_tensor_meta_non_cached = _hidden_from_trackers(propagate)
    with FakeTensorMode():
        yield


def is_fake() -> bool:
    return dist.get_backend() == "fake"


def _assume_that_ranks_agree(everyone: list, mine, group=None) -> None:
    """Replace dist.all_gather_object. Engines use it to check that ranks agree, but it reads real tensors."""
    everyone[:] = [mine] * len(everyone)


def _hidden_from_trackers(propagate: Callable) -> Callable:
    """Hide DTensor's own fake tensors from trackers. DTensor makes them to learn an operation's result; they are as
    large as all shards together, and no rank holds them."""

    @wraps(propagate)
    def hidden(*args):
        with _disable_current_modes():
            return propagate(*args)

    return hidden


# Replacements for what DDP's C++ reducer can't do with fake tensors


def without_hardware(ddp: DistributedDataParallel) -> DistributedDataParallel:
    ddp.register_comm_hook(None, _averaged)
    ddp.reducer = _Reducer(ddp.reducer)
    return ddp


def _averaged(_, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP does. DDP itself asks the collective for a result, and a fake collective has none."""
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Reducer:
    """torch's reducer, which rebuilds its buckets (in the order of gradients) from real numbers, not fake ones."""

    def __init__(self, reducer: dist.Reducer) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str):
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        with _RealNumbers():
            return self._reducer._rebuild_buckets()


class _RealNumbers(TorchDispatchMode):
    """Make int32 tensors, and results of real tensors alone, real inside a FakeTensorMode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if kwargs.get("dtype") is torch.int32 or (tensors and not any(isinstance(t, FakeTensor) for t in tensors)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)
