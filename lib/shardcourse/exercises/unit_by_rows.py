"""Check of lesson 5a's exercise: shard each parameter by rows, and gather a unit in one message, as FSDP2 does."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

N = 3
SHAPES = ((6, 4), (5, 3), (2, 7), (4,))  # an equal share, uneven ones, and a rank without rows


def check_rows(shard_rows: Callable, gather_rows: Callable) -> str:
    """Return in words what is wrong with the reader's functions, or that they are right."""
    try:
        ranks = launch(_try, N, shard_rows, gather_rows, device="cpu", stream=False)
    except LaunchError as error:
        return f"It fails. {str(error).strip().splitlines()[-1]}"
    if None in ranks:
        return "shard_rows and gather_rows are not written yet."
    return next((words for words in ranks if words), "Right: each rank keeps its rows, and one all_gather is enough.")


def _try(shard_rows: Callable, gather_rows: Callable) -> str | None:
    """Return what is wrong on this rank; "" if nothing is, None if the functions are not written."""
    torch.manual_seed(0)
    params = [torch.randn(shape) for shape in SHAPES]
    copies = [p.clone() for p in params]
    try:
        shards = list(shard_rows(copies))
        wrong = _wrong_shards(shards, params, copies)
        if wrong:
            return wrong
        for copy in copies:
            copy.zero_()  # what is gathered must come from the shards
        with record_traffic() as traffic:
            whole = list(gather_rows(shards, [p.shape for p in params]))
    except NotImplementedError:
        return None
    return _wrong_whole(whole, params, dict(traffic.kinds()))


def _wrong_shards(shards: list[Tensor], params: list[Tensor], copies: list[Tensor]) -> str:
    rank = dist.get_rank()
    if len(shards) != len(params):
        return f"Rank {rank}: shard_rows returns {len(shards)} tensors for {len(params)} parameters."
    for shard, p, copy in zip(shards, params, copies, strict=True):
        rows = -(-p.shape[0] // N)
        wanted = p[rank * rows : (rank + 1) * rows]
        which = f"Rank {rank}, a parameter of shape {list(p.shape)}"
        if shard.shape != wanted.shape:
            return f"{which}: the shard has the shape {list(shard.shape)}, and should have {list(wanted.shape)}."
        if not torch.equal(shard, wanted):
            return f"{which}: the shard has other rows than {rank * rows} to {rank * rows + len(wanted)}."
        if shard.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr() and shard.numel():
            return f"{which}: the shard is a view, so the whole parameter can't be freed. Copy it."
    return ""


def _wrong_whole(whole: list[Tensor], params: list[Tensor], kinds: dict[str, int]) -> str:
    for found, p in zip(whole, params, strict=True):
        which = f"Rank {dist.get_rank()}, a parameter of shape {list(p.shape)}"
        if found.shape != p.shape:
            return f"{which}: gather_rows returns the shape {list(found.shape)}."
        if not torch.equal(found, p):
            return f"{which}: gather_rows returns wrong values in row {_first_wrong_row(found, p)}."
    if kinds != {"all_gather": 1}:
        return f"The values are right. But the unit is sent as {kinds}, and one all_gather is enough."
    return ""


def _first_wrong_row(found: Tensor, p: Tensor) -> int:
    return int((found != p).reshape(len(p), -1).any(1).nonzero()[0])
