"""What a function needs to travel to the ranks, and its results to travel back: cloudpickle, and one repair."""

import importlib
import io
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
    by accident: if it mentions `dist`, and anything called `config`, cloudpickle packs torch.distributed.config."""

    def reducer_override(self, obj):
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)
