"""The layout of FSDP1: a unit's parameters are laid end to end, padded, and cut into N equal shards.

The all_gather_output is the parameters: an all_gather goes straight from the optimizer's vector into place, and whole
parameters are views of it. See [Note: what a layout costs] in `per_parameter` for the other side of it. One message can
only have one dtype, and one vector only one `requires_grad`: a unit has a flat parameter for each pair of these.

With `use_orig_params` the optimizer sees the original parameters after all, each as that part of it, 1-D, which lies in
this rank's shard. It may be empty.

Source: Zhao et al. 2023, section 3.2.1; torch.distributed.fsdp._flat_param.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.fsdp.ranks import Ranks
from shardlab.fsdp.slots import Slot, Unsharded, call_hooks
from shardlab.parameter_shards import flat_shards

PREFIX = "_flat_param"  # its name on the unit's module, and a number


@dataclass(frozen=True, eq=False)
class FlatInterval:
    """This rank holds elements [start, end) of a flattened parameter, in `shard[offset : offset + end - start]`."""

    name: str
    shape: torch.Size
    start: int
    end: int
    shard: nn.Parameter  # the one that the optimizer has
    offset: int
    aliases: tuple[str, ...]  # further names, if it is tied


class FlatParameter:
    """The parameters of a unit that share a dtype and `requires_grad`. S is 1/N of their elements, rounded up.

    Keeps: sharded, S elements; unsharded, N S elements of `param_dtype` more, but nothing more if N is 1 and there is
    nothing to convert: then the whole parameters are views of the shard.
    """

    children_first = False  # the order of parameters in a unit: that of module.parameters(), as FSDP1 has it

    def __init__(
        self,
        slots: list[Slot],
        ranks: Ranks,
        param_dtype: torch.dtype | None,
        on_cpu: bool,
        use_orig_params: bool = False,
    ) -> None:
        first = slots[0].param
        if first.is_meta:
            raise ValueError(
                f"rank {dist.get_rank()}: {slots[0].name} is on the meta device, and initialisers would not find it in "
                "a flat parameter: initialise the model first, or shard it with the layout PerParameter"
            )
        self.slots, self.ranks, self.param_dtype = slots, ranks, param_dtype
        self.shapes = [slot.param.shape for slot in slots]
        self.numels = [shape.numel() for shape in self.shapes]
        self.shard_numel = -(-sum(self.numels) // ranks.shard_size)
        self.shard = torch.zeros(self.shard_numel, dtype=first.dtype, device="cpu" if on_cpu else ranks.device)
        for slot, (start, end, offset) in zip(slots, self.intervals(), strict=True):
            self.shard[offset : offset + end - start] = slot.param.detach().reshape(-1)[start:end]
        self.shard_slots = self._shard_slots(use_orig_params)
        self.put_sharded([nn.Parameter(part, first.requires_grad) for part in self._parts(self.shard)])
        self.refresh()

    @staticmethod
    def groups(slots: list[Slot]) -> list[list[Slot]]:
        """Which parameters of a unit can be one flat parameter: of one dtype and `requires_grad`."""
        groups: dict[tuple, list[Slot]] = {}
        for slot in slots:
            groups.setdefault((slot.param.dtype, slot.param.requires_grad), []).append(slot)
        return list(groups.values())

    def intervals(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, offset) of each parameter: elements [start, end) lie from `offset` of the shard on."""
        first = self.ranks.shard_rank * self.shard_numel
        for begin, numel in zip(accumulate(self.numels, initial=0), self.numels, strict=False):
            start, end = (min(max(edge - begin, 0), numel) for edge in (first, first + self.shard_numel))
            yield start, end, max(begin - first, 0) if end > start else 0

    def _shard_slots(self, use_orig_params: bool) -> list[Slot]:
        """Slots in which the optimizer's parameters are registered."""
        if use_orig_params:
            return self.slots
        module = self.slots[0].unit_module
        name = f"{PREFIX}{sum(name.startswith(PREFIX) for name in module._parameters)}"
        return [Slot(name, None, module, [(module, name)])]

    def _parts(self, shard: Tensor) -> list[Tensor]:
        """Cut (S,) into the parts of the optimizer's parameters."""
        if self.shard_slots is not self.slots:
            return [shard]
        return [shard[offset : offset + end - start] for start, end, offset in self.intervals()]

    def put_sharded(self, params: list[nn.Parameter] | None = None) -> None:
        for slot in self.slots:
            slot.remove()
        for slot, p in zip(self.shard_slots, params or self.sharded_params, strict=True):
            slot.put(p)

    def refresh(self) -> None:
        """Parameters may have been loaded, converted or moved: make them views of one shard again."""
        self.sharded_params = [slot.current for slot in self.shard_slots]
        for p in self.sharded_params:
            flat_shards[p] = ((self.ranks.device.type, self.ranks.shard_group),) if self.ranks.shard_size > 1 else ()
        like = self.sharded_params[0]
        self.shard = torch.zeros(self.shard_numel, dtype=like.dtype, device=like.device)
        for p, part in zip(self.sharded_params, self._parts(self.shard), strict=True):
            p.data = part.copy_(p.detach())
        converts = self.param_dtype is not None and like.is_floating_point()
        self.dtype = self.param_dtype if converts else like.dtype
        self.is_whole = self.ranks.shard_size == 1 and (self.dtype, self.ranks.device) == (like.dtype, like.device)
        self.whole: Tensor | None = None
        self.unsharded: list[Unsharded] = []

    # Parameters: the shard is the all_gather_input, the all_gather_output the parameters

    def all_gather_tensors(self) -> tuple[Tensor, Tensor]:
        """(N, S) for the all_gather_output, and the all_gather_input: the shard itself if nothing is to convert."""
        rows = self._allocate().view(self.ranks.shard_size, -1)
        if self.shard.dtype == self.dtype and self.shard.device == rows.device:
            return rows, self.shard
        return rows, rows[self.ranks.shard_rank].copy_(self.shard, non_blocking=True)

    def use(self, output: Tensor | None) -> None:
        """Use what has arrived, which is in place already. None: this rank shards alone."""
        if output is None and not self.is_whole:
            self._allocate().copy_(self.shard, non_blocking=True)
        whole = self.shard if self.is_whole else self.whole
        trained = any(p.requires_grad for p in self.sharded_params)  # it may have been set meanwhile
        if not self.unsharded:
            places = zip(self.slots, whole.split(self._sizes())[: len(self.slots)], self.shapes, strict=True)
            self.unsharded = [Unsharded(slot, part, shape, trained) for slot, part, shape in places]
        for slot in self.shard_slots:
            slot.remove()
        for unsharded in self.unsharded:
            unsharded.use(trained)

    def _allocate(self) -> Tensor:
        if self.whole is None:
            self.whole = torch.empty(
                self.ranks.shard_size * self.shard_numel, dtype=self.dtype, device=self.ranks.device
            )
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        return self.whole

    def _sizes(self) -> list[int]:
        """Elements of the parameters and, at the end, of the padding."""
        return [*self.numels, self.ranks.shard_size * self.shard_numel - sum(self.numels)]

    def free(self) -> None:
        if not self.is_whole:
            self.whole.untyped_storage().resize_(0)
        for unsharded in self.unsharded:
            unsharded.free()

    # Gradients: laid end to end like the parameters

    def keep_gradients(self, reduce_dtype: torch.dtype | None) -> None:
        for unsharded in self.unsharded:
            unsharded.keep_gradient(reduce_dtype)

    def take_gradients(self) -> dict[int, Tensor]:
        """Whole gradients by position; the caller frees them."""
        gradients = [unsharded.take_gradient() for unsharded in self.unsharded]
        return {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}

    def reduce_scatter_input(self, gradients: dict[int, Tensor], dtype: torch.dtype) -> Tensor:
        """(N, S) in `dtype`: zeros where it is padded, and for parameters that were not used."""
        whole = torch.empty(self.ranks.shard_size * self.shard_numel, dtype=dtype, device=self.ranks.device)
        *parts, padding = whole.split(self._sizes())
        torch._foreach_zero_([padding, *(part for i, part in enumerate(parts) if i not in gradients)])
        torch._foreach_copy_([parts[i] for i in gradients], [gradient.reshape(-1) for gradient in gradients.values()])
        return whole.view(self.ranks.shard_size, -1)

    def take_reduced_gradients(self, params: list[int], shard: Tensor) -> None:
        """(S,): add it to the sharded parameter's gradient, in the parameter's own dtype. A frozen one gets none."""
        for p, part in zip(self.sharded_params, self._parts(shard.to(self.shard)), strict=True):
            if p.requires_grad:
                p.grad = part if p.grad is None else p.grad.add_(part)
                call_hooks(p)


class OrigParams(FlatParameter):
    """Flat layout in which the optimizer sees the original parameters, each as its part of the shard."""

    def __init__(self, *args) -> None:
        super().__init__(*args, use_orig_params=True)


def flat_intervals(model: nn.Module) -> Iterator[FlatInterval]:
    """Yield where each original parameter's part lies on this rank, for all flat parameters of the model."""
    names = {m: name for name, m in model.named_modules()}
    for m in model.modules():
        for layout in m._unit.layouts if hasattr(m, "_unit") else []:
            if isinstance(layout, FlatParameter):
                yield from _intervals(layout, names)


def _intervals(layout: FlatParameter, names: dict[nn.Module, str]) -> Iterator[FlatInterval]:
    own = layout.shard_slots is layout.slots  # each parameter has a shard of its own
    for i, (slot, (start, end, offset)) in enumerate(zip(layout.slots, layout.intervals(), strict=True)):
        full_names = [f"{names[module]}.{name}".lstrip(".") for module, name in slot.places]
        first, *aliases = (name.replace("_fsdp_wrapped_module.", "") for name in full_names)
        shard, offset = (layout.sharded_params[i], 0) if own else (layout.sharded_params[0], offset)
        yield FlatInterval(first, layout.shapes[i], start, end, shard, offset, tuple(aliases))
