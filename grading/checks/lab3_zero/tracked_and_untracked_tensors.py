"""Read a submission's MemoryTracker: the bytes held, and tensors that no operation of a step touches."""

import gc

import numpy as np
import torch
from torch import Tensor

from shardlab.measure.memory import MemoryTracker


def held(memory: MemoryTracker) -> dict:
    """Return bytes by category at the peak, and at the end."""
    peak = memory.peak
    return {"peak": peak.by_category() | {"where": peak.where}, "held": dict(memory.resident)}


class Newcomers:
    """Tensors and numpy arrays that Python gets to know after this object is made."""

    def __init__(self) -> None:
        self._before = {id(known): known for known in _known()}  # kept alive, so that nothing else gets their ids

    def label(self, memory: MemoryTracker) -> list[Tensor]:
        """Count them, whatever their dtype and even if no operation touches them; return the arrays as tensors."""
        new = [known for known in _known() if id(known) not in self._before]
        arrays = [torch.from_numpy(a.view(np.uint8)) for a in new if isinstance(a, np.ndarray)]
        memory.label("other", *(t for t in new if isinstance(t, Tensor)), *arrays)
        return arrays


def _known() -> list[Tensor | np.ndarray]:
    gc.collect()
    known = gc.get_objects()
    arrays = {id(a): a for a in gc.get_referents(*known) if type(a) is np.ndarray}
    plain = (
        a for a in arrays.values() if a.flags.owndata and a.flags.c_contiguous and a.dtype.kind in "fiub" and a.ndim
    )
    return [*(t for t in known if issubclass(type(t), Tensor)), *plain]
