"""Observe what a rank writes into the process group's store.

Meant for small notes, it can carry anything from rank to rank, and no collective tells of that. A write counts in full,
its key too, on the rank that writes; reading counts nothing.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType

import torch.distributed as dist

_WRITES = ("set", "compare_set", "append", "multi_set", "add", "queue_push")  # `queue_push` is not in each torch
_NUMBER_BYTES = 8

_open: list[Callable[[int], None]] = []  # called with the bytes of each write
_uncounted: set[CodeType] = set()  # whose writes are not the program's


def not_the_programs(function: Callable) -> Callable:
    """Mark a function whose own writes count nothing: those of a simulated network."""
    _uncounted.add(function.__code__)
    return function


@contextmanager
def store_writes(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell(n_bytes)` for each write in this block, to any store, from any thread."""
    originals = {} if _open else {name: vars(dist.Store)[name] for name in _WRITES if name in vars(dist.Store)}
    _open.append(tell)
    try:
        for name, original in originals.items():
            setattr(dist.Store, name, _observed(original))
        yield
    finally:
        _open.remove(tell)
        for name, original in originals.items():
            setattr(dist.Store, name, original)


def _observed(original: Callable) -> Callable:
    """Return the method, observed. A program may keep it: it tells the blocks that are open when it is called."""

    def write(store, *arguments, **options):
        if sys._getframe(1).f_code not in _uncounted:
            for tell in _open:
                tell(sum(map(_bytes, [*arguments, *options.values()])))
        return original(store, *arguments, **options)

    write.__name__ = original.__name__
    return write


def _bytes(argument) -> int:
    if isinstance(argument, list | tuple):
        return sum(map(_bytes, argument))
    argument = argument.encode() if isinstance(argument, str) else argument
    return len(argument) if isinstance(argument, bytes | bytearray) else _NUMBER_BYTES
