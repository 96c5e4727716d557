"""FSDP1's layout: a unit's parameters are laid end to end, padded, and cut into N equal shards.

Whole parameters are views of the all_gather_output, so an all_gather moves the optimizer's vector to its final place
and nothing is copied. See [Note: what a layout costs] in `param` for the price. A message has one dtype and a vector
one `requires_grad`, so a unit has a flat parameter for each pair of these.

Source: Zhao et al. 2023, section 3.2.1; torch.distributed.fsdp._flat_param.
"""

from collections.abc import Iterator
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.backward_hooks import call_hooks
from shardlab.freed_or_replaced_parameters import fit_in_one_vector
from shardlab.fsdp.param import Param
from shardlab.nested_tensors import reallocate
from shardlab.shard_groups import Ranks, flat_shards

PREFIX = "_flat_param"  # its name on the unit's module; a number follows


class FlatParameter:
    """The parameters of a unit that share a dtype and `requires_grad`. S is 1/N of their elements, rounded up.

    Keeps: sharded, S elements; unsharded, N S elements of `param_dtype` more. With one rank and nothing to convert, the
    whole parameters are views of the shard.
    """

    children_first = False  # the order of parameters in a unit: that of module.parameters(), as FSDP1 has it

    def __init__(self, params: list[Param], ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None:
        first, module = params[0].original, params[0].unit_module
        fit_in_one_vector(params)
        self.params, self.ranks, self.param_dtype = params, ranks, param_dtype
        self.numels = [p.shape.numel() for p in params]
        self.shard_numel = -(-sum(self.numels) // ranks.shard_size)
        shard = torch.zeros(self.shard_numel, dtype=first.dtype, device="cpu" if on_cpu else ranks.device)
        for p, (start, end, offset) in zip(params, self.intervals(), strict=True):
            shard[offset : offset + end - start] = p.original.detach().reshape(-1)[start:end]
        name = f"{PREFIX}{sum(name.startswith(PREFIX) for name in module._parameters)}"
        self.flat = Param(name, nn.Parameter(shard, first.requires_grad), module)
        vars(self.flat.original).update(params[0].attributes)
        self.flat.places = [(module, name)]
        self.sharded_params = [self.flat.original]
        self.put_sharded()
        self.refresh()

    @staticmethod
    def groups(params: list[Param]) -> list[list[Param]]:
        """Put parameters of one dtype and `requires_grad` into one message."""
        groups: dict[tuple, list[Param]] = {}
        for p in params:
            groups.setdefault((p.original.dtype, p.original.requires_grad), []).append(p)
        return list(groups.values())

    def intervals(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, offset) of each parameter: its elements [start, end) begin at `offset` in the shard."""
        first = self.ranks.shard_rank * self.shard_numel
        for begin, numel in zip(accumulate(self.numels, initial=0), self.numels, strict=False):
            start, end = (min(max(edge - begin, 0), numel) for edge in (first, first + self.shard_numel))
            yield start, end, max(begin - first, 0) if end > start else 0

    def put_sharded(self) -> None:
        for p in self.params:
            p.remove()
        self.flat.put(self.sharded_params[0])

    def refresh(self) -> None:
        """Use the shard that was loaded, converted or moved, and drop the tensors that were made from the old one."""
        self.sharded_params = [self.flat.current]
        self.shard = self.flat.current.detach()
        sends_from = ((self.ranks.device.type, self.ranks.shard_group),)
        flat_shards[self.flat.current] = sends_from if self.ranks.shard_size > 1 else ()
        converts = self.param_dtype is not None and self.shard.is_floating_point()
        self.dtype = self.param_dtype if converts else self.shard.dtype
        in_place = (self.dtype, self.ranks.device) == (self.shard.dtype, self.shard.device)
        self.is_whole = self.ranks.shard_size == 1 and in_place
        self.whole: Tensor | None = None
        for p in self.params:
            p.forget_whole()

    # Parameters: the shard is the all_gather_input; whole parameters are views of the all_gather_output

    def all_gather_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the all_gather_output, (N, S), and the all_gather_input: the shard itself, unless it is converted."""
        self._follow_data()
        rows = self._allocate().view(self.ranks.shard_size, -1)
        if self.shard.dtype == self.dtype and self.shard.device == rows.device:
            return rows, self.shard
        return rows, rows[self.ranks.shard_rank].copy_(self.shard, non_blocking=True)

    def use(self, output: Tensor | None) -> None:
        """Use the gathered parameters, which are in place already. None: the shard group has only this rank."""
        self._follow_data()
        if output is None and not self.is_whole:
            self._allocate().copy_(self.shard, non_blocking=True)
        self.flat.remove()
        whole = self.shard if self.is_whole else self.whole
        for p, memory in zip(self.params, whole.split(self._sizes()), strict=False):  # the last part is padding
            p.use(memory, self.sharded_params[0].requires_grad)

    def _follow_data(self) -> None:
        if self.shard.data_ptr() != self.sharded_params[0].data_ptr():  # a user has set the flat parameter's `data`
            self.refresh()

    def _allocate(self) -> Tensor:
        if self.whole is None:
            n = self.ranks.shard_size * self.shard_numel
            self.whole = torch.empty(n, dtype=self.dtype, device=self.ranks.device)
        reallocate(self.whole)
        return self.whole

    def _sizes(self) -> list[int]:
        """Number of elements of each parameter and, last, of the padding."""
        return [*self.numels, self.ranks.shard_size * self.shard_numel - sum(self.numels)]

    def free(self) -> None:
        if len({p.whole.requires_grad for p in self.params}) > 1:
            names = ", ".join(p.name for p in self.params)
            raise ValueError(f"rank {dist.get_rank()}: freeze or thaw {names} together: they are one flat parameter")
        if not self.is_whole:
            self.whole.untyped_storage().resize_(0)
        for p in self.params:
            p.free(self.sharded_params[0])

    # Gradients: laid end to end like the parameters

    def reduce_scatter_input(self, gradients: dict[int, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the gradients as (N, S) in `dtype`, with zeros for padding and for parameters that were not used."""
        whole = torch.empty(self.ranks.shard_size * self.shard_numel, dtype=dtype, device=self.ranks.device)
        *parts, padding = whole.split(self._sizes())
        torch._foreach_zero_([padding, *(part for i, part in enumerate(parts) if i not in gradients)])
        torch._foreach_copy_([parts[i] for i in gradients], [gradient.reshape(-1) for gradient in gradients.values()])
        return whole.view(self.ranks.shard_size, -1)

    def take_reduced_gradients(self, used: list[int], shard: Tensor) -> None:
        """Add `shard`, (S,), to the flat parameter's gradient, in the parameter's dtype. A frozen one gets none."""
        p = self.sharded_params[0]
        if p.requires_grad:
            shard = shard.to(self.shard)
            p.grad = shard if p.grad is None else p.grad.add_(shard)
            call_hooks(p)
