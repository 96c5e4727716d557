"""What a function needs to travel to the ranks, and its results to travel back: cloudpickle, and two repairs."""

import importlib
import io
from operator import attrgetter
from types import ModuleType
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """`value` as bytes for `cloudpickle.loads`; a function of a notebook or a script travels by value."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """torch's config modules have classes of their own, and cloudpickle takes them for values. A function gets to one
    by accident: if it mentions `dist`, and anything called `config`, cloudpickle packs torch.distributed.config.
    Operations such as torch.ops.aten.mm.default, which policies of recomputation name, can't be packed; they are found
    again by name."""

    def reducer_override(self, obj):
        if type(obj).__module__ == "torch._ops":
            return _operation, (
                str(getattr(obj, "__name__", "")) if isinstance(obj, ModuleType) else f"torch.ops.{obj}",
            )
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _operation(path: str) -> Any:
    """What is called "torch.ops.aten.mm.default"."""
    import torch

    return attrgetter(path.removeprefix("torch."))(torch)
