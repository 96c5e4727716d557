"""Pickle functions for the ranks and results for the launcher: cloudpickle, with four repairs."""

import functools
import importlib
import io
import sys
from operator import attrgetter
from types import ModuleType
from typing import Any

import cloudpickle
import torch


def dumps(value: Any) -> bytes:
    """Return `value` as bytes for `cloudpickle.loads`; a function of a notebook or a script is packed by value.

    Tensors on a device, wherever they are in `value`, come out on the CPU: otherwise whoever loads them would open that
    device, which takes some hundred MiB of it for each process.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


_OF_THE_HOST = ("cpu", "meta")


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that packs some objects by name. torch's config modules have their own classes, so cloudpickle packs
    them by value: torch.distributed.config, for a function that mentions `dist` and anything called `config`. It can't
    pack operations at all, such as torch.ops.aten.mm.default in a recomputation policy."""

    def reducer_override(self, obj):
        if isinstance(obj, torch.storage.TypedStorage) and obj._untyped_storage.device.type not in _OF_THE_HOST:
            there = obj._untyped_storage.cpu()
            return torch.storage.TypedStorage(wrap_storage=there, dtype=obj.dtype, _internal=True).__reduce__()
        if type(obj).__module__ == "torch._ops":
            return _operation, (
                str(getattr(obj, "__name__", "")) if isinstance(obj, ModuleType) else f"torch.ops.{obj}",
            )
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, _Cached) and _is_by_value(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


_Cached = type(functools.cache(lambda: None))


def _is_by_value(function) -> bool:
    """Return whether a function is of a notebook or a script, which ranks can't import."""
    return function.__module__ == "__main__" or function.__module__ not in sys.modules


def _cached(function, parameters: dict):
    """Return the function with an empty cache of its own."""
    return functools.lru_cache(**parameters)(function)


def _operation(path: str) -> Any:
    """Return the object with this name, such as "torch.ops.aten.mm.default"."""
    return attrgetter(path.removeprefix("torch."))(torch)
