"""The buckets of ZeRO: parameters are views of a flat buffer, which is cut into one slice for each rank.

[Note: layouts] A slice is 1/N of the bucket, padded if N does not divide its size. Laid end to end, a parameter may
cross the boundary between slices. Then two or more ranks own it, each an interval of it:

    | a a a a a b b | b b c c c c - |       two ranks, slices of 7 elements, 1 of padding

This layout suits optimizers that treat each element by itself. For others, parameters stay whole: each goes to the
slice that is shortest so far, largest parameter first, and all slices are padded to the longest:

    | c c c c b b b b | a a a a a - - - |   3 of padding

In both layouts, a reduce_scatter of gradients gives each rank the mean of its own slice, and an all_gather of the
slices gives every rank all parameters in place. Neither needs a copy.

[Note: views] `p.data` becomes a view of the bucket, as in DeepSpeed and with torch's `parameters_as_bucket_view`. The
price: `module.to(...)` or `p.data = ...` moves a parameter out of the bucket, and the optimizer would then update
memory that no forward reads. `check_still_in` raises an error if that happened.

Source: Megatron-LM's distributed optimizer, which also cuts each bucket into slices rather than the whole model, so
that a bucket's gradients can be reduced to their owners as soon as it is full.
"""

from itertools import accumulate
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.backward_hooks import refuse_sparse
from shardlab.shard_groups import reduce_scatter


class Shard(NamedTuple):
    """Elements [start, end) of the flattened `param`, which this rank owns."""

    param: nn.Parameter
    start: int
    end: int
    shard_param: nn.Parameter  # shape (end - start,), or param's own if parameters stay whole


class Bucket:
    """Flat buffer of parameters of one dtype, with a slice for each rank; also their gradients while they are reduced.

    Sends: on construction, rank 0's weights in one broadcast of the buffer.
    Keeps: `flat`, of which the parameters are views; between `take` and `receive` a buffer of the same size for
    gradients, and from `send` on another of 1/N of that size.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        elementwise: bool,
        group: dist.ProcessGroup | None,
        names: dict[nn.Parameter, str],
    ) -> None:
        self.group, self.world_size, self.names = group, dist.get_world_size(group), names
        lay_out = _end_to_end if elementwise else _whole
        self.starts, n = lay_out(params, self.world_size)  # where each parameter begins; elements in a slice
        self.flat = torch.zeros(n * self.world_size, dtype=params[0].dtype, device=params[0].device)
        first = n * dist.get_rank(group)
        self.slice = self.flat[first : first + n]
        self._move_in()
        dist.broadcast(self.flat, group_src=0, group=group)
        self.shards = [s for p in self.starts for s in self._owned(p, first, first + n, whole=not elementwise)]
        self.grad_slice: Tensor | None = None  # the mean over ranks of this slice's gradients, once received
        self.reset()

    @torch.no_grad()
    def _move_in(self) -> None:
        for p in self.starts:
            p.data = self._view(self.flat, p).copy_(p)

    def _view(self, flat: Tensor, p: nn.Parameter) -> Tensor:
        return flat[self.starts[p] : self.starts[p] + p.numel()].view(p.shape)

    def _owned(self, p: nn.Parameter, first: int, last: int, whole: bool) -> list[Shard]:
        """Return p's shard in elements [first, last) of the buffer, or nothing."""
        begin = self.starts[p]
        low, high = max(first, begin), min(last, begin + p.numel())
        if low >= high:
            return []
        piece = self.flat[low:high]
        shard_param = nn.Parameter(piece.view(p.shape) if whole else piece)
        vars(shard_param).update(vars(p))  # attributes that users set, which an optimizer may look for
        return [Shard(p, low - begin, high - begin, shard_param)]

    def check_still_in(self) -> None:
        for p, start in self.starts.items():
            if p.numel() and p.data_ptr() != self.flat.data_ptr() + start * self.flat.element_size():
                raise RuntimeError(
                    f"rank {dist.get_rank()}: {self.names[p]} was moved after the optimizer had been built, "
                    "by module.to(...) or by setting its data: build the optimizer last"
                )

    # Gradients: take each, send all, receive this rank's

    def reset(self) -> None:
        """Drop the gradients that were taken, and the handle of their reduce_scatter."""
        self.missing = {p for p in self.starts if p.requires_grad}
        self._flat_grad: Tensor | None = None  # whole gradients, divided by N; freed as soon as possible
        self._work: dist.Work | None = None

    @property
    def holds_gradients(self) -> bool:
        return self._flat_grad is not None

    @torch.no_grad()
    def take(self, p: nn.Parameter) -> None:
        """Move p's gradient, divided by the number of ranks, into the buffer: after the sum it is the mean."""
        refuse_sparse(p.grad, self.names[p])
        if self._flat_grad is None:
            self._flat_grad = torch.empty_like(self.flat)  # padding is sent, but never read
        view = self._view(self._flat_grad, p)
        if p.grad is None:  # an autograd function returned None, which counts as zero
            view.zero_() if p in self.missing else None
        elif p in self.missing:
            torch.mul(p.grad, 1 / self.world_size, out=view)
        else:  # the rest of it: a module ran twice in reentrant checkpoints
            view.add_(p.grad, alpha=1 / self.world_size)
        p.grad = None
        self.missing.discard(p)

    def send(self) -> None:
        self._received = torch.empty_like(self.slice)
        self._work = reduce_scatter(self._received, self._flat_grad, group=self.group, async_op=True)

    def receive(self) -> None:
        """Wait for the mean of this rank's gradients, and add it to those of earlier micro-batches."""
        self._work.wait()
        if self.grad_slice is None:
            self.grad_slice = self._received
        else:
            self.grad_slice += self._received
        self._received = None
        self.reset()
        self._show_gradients()

    def _show_gradients(self) -> None:
        lengths = [s.shard_param.numel() for s in self.shards]
        for shard, grad in zip(self.shards, self.grad_slice[: sum(lengths)].split(lengths), strict=True):
            if shard.param.requires_grad:  # False if it was frozen meanwhile
                shard.shard_param.grad = grad.view_as(shard.shard_param)

    def drop_gradients(self) -> None:
        self.grad_slice = None
        for shard in self.shards:
            shard.shard_param.grad = None


def _end_to_end(params: list[nn.Parameter], world_size: int) -> tuple[dict[nn.Parameter, int], int]:
    *starts, total = accumulate((p.numel() for p in params), initial=0)
    return dict(zip(params, starts, strict=True)), -(-total // world_size)


def _whole(params: list[nn.Parameter], world_size: int) -> tuple[dict[nn.Parameter, int], int]:
    owned: list[list[nn.Parameter]] = [[] for _ in range(world_size)]
    for p in sorted(params, key=Tensor.numel, reverse=True):
        min(owned, key=_numel).append(p)
    n = max(map(_numel, owned))
    starts = {}
    for rank, ps in enumerate(owned):
        starts |= dict(zip(ps, accumulate((p.numel() for p in ps), initial=rank * n), strict=False))
    return starts, n


def _numel(params: list[nn.Parameter]) -> int:
    return sum(p.numel() for p in params)
