"""A process in which tensors have no bytes and this rank is alone, though it believes to be one of many."""

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
    """For the rest of this process, it is rank 0 of a fake group; inside, whatever it makes is fake."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    dist.all_gather_object = _everybody_says_the_same
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    ShardingPropagator._propagate_tensor_meta_non_cached = _unseen(propagate)
    with FakeTensorMode():
        yield


def is_fake() -> bool:
    return dist.get_backend() == "fake"


def _everybody_says_the_same(everyone: list, mine, group=None) -> None:
    """In place of dist.all_gather_object, by which engines check that ranks agree: it would look into tensors."""
    everyone[:] = [mine] * len(everyone)


def _unseen(propagate: Callable) -> Callable:
    """DTensor learns an operation's result from fake tensors of its own, as large as all shards together: no rank has
    such, and no tracker is to count them."""

    @wraps(propagate)
    def unseen(*args):
        with _disable_current_modes():
            return propagate(*args)

    return unseen


# What DDP's reducer, which is C++, can't do with fake tensors


def without_hardware(ddp: DistributedDataParallel) -> DistributedDataParallel:
    ddp.register_comm_hook(None, _averaged)
    ddp.reducer = _Reducer(ddp.reducer)
    return ddp


def _averaged(_, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """As DDP does itself; but it asks its collective for a result, and a fake one has none."""
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Reducer:
    """torch's, but that it rebuilds its buckets, in the order in which gradients came, from numbers that are real."""

    def __init__(self, reducer: dist.Reducer) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str):
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        with _RealNumbers():
            return self._reducer._rebuild_buckets()


class _RealNumbers(TorchDispatchMode):
    """Inside of a FakeTensorMode: int32 tensors, and what is made of real ones, are real."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if kwargs.get("dtype") is torch.int32 or (tensors and not any(isinstance(t, FakeTensor) for t in tensors)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)
