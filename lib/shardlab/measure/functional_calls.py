"""Observe functional collectives, of which the flight recorder does not say enough to count their bytes.

`torch.distributed._functional_collectives`, DTensor and compiled code call operators of `torch.ops._c10d_functional`.
Autograd calls these operators from C++. None of these calls uses the Python methods of a process group. But each one
passes the dispatcher's key BackendSelect on its way to a device's kernel, and any thread sees a kernel of that key.

The recorder has the bytes of most operators right. Two kinds need more:
- an all_to_all: the recorder does not know which part of the input stays on the rank;
- a reduce_scatter under gloo: it runs as an all_reduce. Only Python's stack, which C++ does not have, tells otherwise.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import _resolve_process_group

from shardlab.launch.flight_recorder import Collective

_SCATTERS = ("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced")
_KEY = "BackendSelect"


@dataclass
class FunctionalCalls:
    """Facts about the functional collectives of a block."""

    own_parts: list[tuple[str, int, int]] = field(default_factory=list)  # group, bytes of the input, of its own part
    scatters: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each, in seconds since 1970

    def as_asked_for(self, c: Collective) -> Collective:
        """Return an all_reduce that a functional reduce_scatter has issued as that; anything else unchanged."""
        if c.kind != "all_reduce" or not any(begin <= c.issued_s <= end for begin, end in self.scatters):
            return c
        return replace(c, kind="reduce_scatter", output_bytes=c.input_bytes // max(len(c.members), 1))


_open: list[FunctionalCalls] = []  # of the blocks that are open


@contextmanager
def functional_calls() -> Iterator[FunctionalCalls]:
    """Observe the functional collectives of all threads in this block."""
    calls = FunctionalCalls()
    kernels = None if _open else torch.library.Library("_c10d_functional", "IMPL")
    _open.append(calls)
    try:
        if kernels:
            kernels.impl("all_to_all_single", _all_to_all, _KEY, with_keyset=True)
            for name in _SCATTERS:
                kernels.impl(name, _scatter(name), _KEY, with_keyset=True)
        yield calls
    finally:
        _open.remove(calls)
        if kernels:
            kernels._destroy()


def _all_to_all(keys, input: Tensor, output_splits, input_splits, group) -> Tensor:
    if not _is_traced(input):
        group_of_call = _resolve_process_group(group) if isinstance(group, str) else group
        parts = input.split(list(input_splits)) if input_splits else input.tensor_split(group_of_call.size())
        mine = parts[group_of_call.rank()].nbytes
        for calls in _open:
            calls.own_parts.append((group_of_call.group_name, input.nbytes, mine))
    kernel = torch.ops._c10d_functional.all_to_all_single.default
    return kernel.redispatch(_below(keys), input, output_splits, input_splits, group)


def _scatter(name: str) -> Callable:
    """Return an operator's kernel that notes when the call begins and ends."""

    def kernel(keys, inputs, *args, **options):
        begin = time.time()
        try:
            return getattr(torch.ops._c10d_functional, name).default.redispatch(_below(keys), inputs, *args, **options)
        finally:
            if not _is_traced(inputs):
                for calls in _open:
                    calls.scatters.append((begin, time.time()))

    return kernel


def _below(keys: torch._C.DispatchKeySet) -> torch._C.DispatchKeySet:
    return keys & torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))


def _is_traced(tensors: Tensor | list[Tensor]) -> bool:
    """Return whether a compiler traces the call, so that nothing is sent."""
    first = tensors if isinstance(tensors, Tensor) else tensors[0]
    return isinstance(first, FakeTensor) or first.is_meta
