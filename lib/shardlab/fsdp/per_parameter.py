"""The layout of FSDP2: every parameter is cut along dim 0, and each rank's part of it is a DTensor.

Rank r holds rows [r c, (r+1) c) of a parameter with R rows, c = R/N rounded up (torch.chunk): the last ranks may hold
fewer rows, or none. On the wire every part has c rows, so that all ranks send as much; the padding is never read.

[Note: what a layout costs] Here the parts of one parameter lie S elements apart in the all_gather_output, and are
copied together; gradients are copied apart, the other way. In return each parameter remains itself: optimizers,
clipping and checkpoints see a DTensor with a name, a shape and a dtype. `flat_parameter` lays all parameters of a unit
end to end and cuts that: the output is the parameters, no copy, but the optimizer sees one opaque vector.

[Note: lifetime] Autograd keeps references to unsharded parameters from forward to backward, or to views of them, such
as a transposed weight. So a parameter can't be freed by letting go of it, and a new tensor in its place would not be
found by backward. Hence a tensor object that lives for ever and whose storage comes and goes: resized to 0 bytes, and
back, and filled again before backward looks. Filling must not look like an in-place change, against which autograd
would protest: the parameter is made from `.data`, and so counts its versions by itself.

Source: torch.distributed.fsdp._fully_shard._fsdp_param.
"""

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from shardlab.fsdp.ranks import Ranks
from shardlab.fsdp.slots import Slot, Unsharded, call_hooks


class PerParameter:
    """The parameters of a unit, sent together. S is the sum of their padded parts.

    Keeps: sharded, 1/N of each parameter and no padding; unsharded, N S elements of `param_dtype` more.
    """

    children_first = True  # the order of parameters in a unit, as FSDP2 has it

    def __init__(self, slots: list[Slot], ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None:
        for slot in slots:
            if not slot.param.is_contiguous():
                raise ValueError(
                    f"rank {dist.get_rank()}: {slot.name}, of shape {list(slot.param.shape)} and stride "
                    f"{slot.param.stride()}, is not contiguous: shards are cut from rows, so make it contiguous before"
                )
        self.slots, self.ranks = slots, ranks
        self.params = [_Param(slot, ranks, param_dtype, on_cpu) for slot in slots]
        self.refresh()

    @staticmethod
    def groups(slots: list[Slot]) -> list[list[Slot]]:
        """Put all parameters of a unit into one message."""
        return [slots] if slots else []

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        return [p.sharded for p in self.params]

    def put_sharded(self) -> None:
        for p in self.params:
            p.slot.put(p.sharded)

    def refresh(self) -> None:
        """Take parameters that were loaded, converted or moved, and forget what was made of the former ones."""
        for p in self.params:
            p.refresh()
        self.mixed = len({p.dtype for p in self.params}) > 1  # then everything travels as bytes

    # Parameters: shards -> all_gather_input -> all_gather_output -> whole parameters

    def all_gather_tensors(self) -> tuple[Tensor, Tensor]:
        """(N, S) for the all_gather_output, and its row of this rank, in which the all_gather_input lies already."""
        shards, sizes = [p.local.view(-1) for p in self.params], self._wire_sizes()
        if self.mixed:
            shards = [shard.to(p.dtype).view(torch.uint8) for p, shard in zip(self.params, shards, strict=True)]
        dtype = torch.uint8 if self.mixed else self.params[0].dtype
        output = torch.empty(self.ranks.shard_size, sum(sizes), dtype=dtype, device=self.ranks.device)
        row = output[self.ranks.shard_rank]
        parts_and_paddings = chain(*((s.numel(), size - s.numel()) for s, size in zip(shards, sizes, strict=True)))
        torch._foreach_copy_(row.split(list(parts_and_paddings))[::2], shards, non_blocking=True)
        return output, row

    def use(self, output: Tensor | None) -> None:
        """Copy the parts of each parameter together. None: this rank shards alone, and its parts are all there is."""
        wholes = [p.allocate() for p in self.params]
        if output is None:
            torch._foreach_copy_(wholes, [p.local.view(1, -1) for p in self.params], non_blocking=True)
        else:
            wholes = [whole.view(torch.uint8) for whole in wholes] if self.mixed else wholes
            torch.split_with_sizes_copy(output, self._wire_sizes(), dim=1, out=wholes)
        for p in self.params:
            p.unsharded.use(p.sharded.requires_grad)

    def _wire_sizes(self) -> list[int]:
        return [p.padded_numel * (p.dtype.itemsize if self.mixed else 1) for p in self.params]

    def free(self) -> None:
        for p in self.params:
            p.whole.untyped_storage().resize_(0)
            p.unsharded.free()

    # Gradients: whole gradients -> reduce_scatter_input -> reduced shards

    def keep_gradients(self, reduce_dtype: torch.dtype | None) -> None:
        for p in self.params:
            if p.unsharded:  # else it never ran
                p.unsharded.keep_gradient(reduce_dtype)

    def take_gradients(self) -> dict["_Param", Tensor]:
        """Whole gradients of the parameters that were used; the caller frees them."""
        gradients = {p: p.unsharded.take_gradient() for p in self.params if p.unsharded}
        return {p: gradient for p, gradient in gradients.items() if gradient is not None}

    def reduce_scatter_input(self, gradients: dict["_Param", Tensor], dtype: torch.dtype) -> Tensor:
        """(N, S) in `dtype`: in row r the parts that rank r is to keep, zeros where they are padded."""
        size = self.ranks.shard_size, sum(p.padded_numel for p in gradients)
        rows = torch.empty(size, dtype=dtype, device=self.ranks.device)
        return torch._chunk_cat(list(gradients.values()), dim=0, num_chunks=self.ranks.shard_size, out=rows)

    def take_reduced_gradients(self, params: list["_Param"], shard: Tensor) -> None:
        """(S,): add each part to its sharded parameter's gradient, in the parameter's own dtype."""
        for p, part in zip(params, shard.split([p.padded_numel for p in params]), strict=True):
            p.add_to_gradient(part)


class _Param:
    """One parameter: `sharded`, a DTensor, for the optimizer, and `unsharded`, for autograd."""

    def __init__(self, slot: Slot, ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None:
        self.slot, self.ranks, self.param_dtype = slot, ranks, param_dtype
        self.shape = slot.param.shape
        self.rows = -(-self.shape[0] // ranks.shard_size)
        self.padded_numel = self.rows * self.shape[1:].numel()
        self.whole: Tensor | None = None  # (N, padded_numel), the memory of `unsharded`
        self.unsharded: Unsharded | None = None
        slot.put(self._shard(slot.param, on_cpu))

    def _shard(self, p: nn.Parameter, on_cpu: bool) -> nn.Parameter:
        start = min(self.ranks.shard_rank * self.rows, self.shape[0])
        mine = p.detach()[start : start + self.rows].clone()
        if on_cpu and not mine.is_meta:
            mine = mine.cpu()
        placements = [Shard(0)] if self.ranks.replicate_group is None else [Replicate(), Shard(0)]
        sizes = {"shape": p.shape, "stride": p.stride()}
        dtensor = DTensor.from_local(mine, self.ranks.mesh, placements, run_check=False, **sizes)
        return nn.Parameter(dtensor, requires_grad=p.requires_grad)

    def refresh(self) -> None:
        self.sharded = self.slot.current
        self.slot.put(self.sharded)
        self.dtype = self.param_dtype if self.param_dtype and self.sharded.is_floating_point() else self.sharded.dtype
        self.whole = self.unsharded = None

    @property
    def local(self) -> Tensor:
        return self.sharded._local_tensor

    def allocate(self) -> Tensor:
        """(N, padded_numel), to be filled."""
        if self.whole is None:
            size = self.ranks.shard_size, self.padded_numel
            self.whole = torch.empty(size, dtype=self.dtype, device=self.ranks.device)
            self.unsharded = Unsharded(self.slot, self.whole.view(-1), self.shape, self.sharded.requires_grad)
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        return self.whole

    def add_to_gradient(self, part: Tensor) -> None:
        """`part`: (padded_numel,), a view, which becomes the gradient if that is None and dtype and device agree."""
        gradient = part[: self.local.numel()].view_as(self.local).to(self.local)
        if self.sharded.grad is None:
            self.sharded.grad = DTensor(gradient, self.sharded._spec, requires_grad=False)
        else:
            self.sharded.grad._local_tensor.add_(gradient)
        call_hooks(self.sharded)
