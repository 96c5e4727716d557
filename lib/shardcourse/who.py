"""`who("model.layers.0.weight")`: a picture of the part of a tensor that each live rank holds at this moment.

It reads DTensors, the shards and gathered parameters of torch's and our engines, and plain tensors.
"""

import math
import re
from collections.abc import Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardlive import Ranks
from shardlive.magics import live_ranks

Part = tuple[str, tuple[tuple[float, float], tuple[float, float]] | None]  # see shardcourse.figures.slices


def who(tensor: str, ranks: Ranks | None = None):
    """Return a figure of who holds which part of a tensor now. Run it again after `unshard()`, and compare.

    `tensor`: an expression on the ranks; "model.layers.0.weight" means `model.layers[0].weight`. `ranks`: those of
    `%ranks` if left out. Raises shardlive.RankError if the expression fails.
    """
    from shardcourse.figures.slices import slices  # not above: the ranks import this file, and draw nothing

    expression = re.sub(r"\.(\d+)\b", r"[\1]", tensor)
    parts = (ranks or live_ranks()).pull(f"__import__('shardcourse.who', fromlist=['part']).part({expression})")
    return slices([part or ("has ended", None) for part in parts], f"Who holds {tensor} now")


def part(value: Tensor | None) -> Part:
    """Return the part of a tensor that this rank holds: words, and its spans of rows and columns (None: nothing)."""
    if value is None:
        return "None", None
    if not isinstance(value, Tensor):
        raise TypeError(f"who() draws a tensor, not a {type(value).__name__}")
    local = value.to_local() if isinstance(value, DTensor) else value
    if local.untyped_storage().nbytes() < local.numel() * local.element_size():
        return f"{type(value).__name__}: freed", None
    if not isinstance(value, DTensor):
        return _part(value, value.shape, [0] * value.dim(), f"{type(value).__name__}: whole")
    shape, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    return _part(value, shape, offset, "DTensor: a whole copy" if shape == value.shape else "DTensor: a shard")


def _part(value: Tensor, held: Sequence[int], offset: Sequence[int], words: str) -> Part:
    """Return the part in two dimensions: a vector is one column, and dimensions after the second are not drawn."""
    n_bytes = math.prod(held) * value.element_size()
    if not n_bytes:
        return f"{words}\nno rows", None
    spans = [(o / n, (o + h) / n) for n, o, h in zip(value.shape, offset, held, strict=True)]
    if tuple(held) == tuple(value.shape):
        where = str(list(held))
    else:
        where = ", ".join(
            f"{name} {o}:{o + h}"
            for name, o, h, n in zip(("rows", "columns", "depth"), offset, held, value.shape, strict=False)
            if h < n
        )
    rows, columns = [*spans, (0.0, 1.0), (0.0, 1.0)][:2]
    return f"{words}\n{where}, {n_bytes:,} bytes", (rows, columns)
