"""A parameter of a unit, and FSDP2's layout: every parameter is cut along dim 0; each rank's part of it is a DTensor.

Rank r holds rows [r c, (r+1) c) of a parameter with R rows; c is R/N rounded up, so the last ranks may hold fewer rows,
or none. In messages every part has c rows; the padding is never read.

[Note: what a layout costs] Here the parts of a parameter lie S elements apart in the all_gather_output, so they are
copied together, and gradients are copied apart. In return, optimizers, clipping and checkpoints see each parameter as a
DTensor with a name, a shape and a dtype. `flat_parameter` copies no parameters, but its optimizer sees one vector.

[Note: lifetime] Between forward and backward, autograd keeps references to whole parameters, or to views of them such
as a transposed weight. Backward would not find a new tensor in their place. So `whole` stays the same object, and only
its memory is freed and filled: its storage is resized to 0 bytes, later resized back, and filled before backward reads
it. Autograd must not see this as an in-place change, which it would report: `whole` is made from `.data`, and so has a
version counter of its own.

Source: torch.distributed.fsdp._fully_shard._fsdp_param.
"""

from collections.abc import Callable, Iterable
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from shardlab.backward_hooks import after_gradient, call_hooks, refuse_sparse
from shardlab.freed_or_replaced_parameters import FreedParameter, no_forward_yet, refuse_other_use
from shardlab.nested_tensors import reallocate
from shardlab.shard_groups import Ranks


class Param:
    """A parameter: its places in the modules (several if it is tied), and the whole parameter that autograd sees."""

    def __init__(self, name: str, original: nn.Parameter, unit_module: nn.Module) -> None:
        self.name = name  # path below the unit's module; below the root, once the root is known
        self.original: nn.Parameter | None = original  # until it is sharded
        self.unit_module, self.shape = unit_module, original.shape
        self.attributes = dict(vars(original))  # attributes that users set, such as `no_weight_decay`
        self.places: list[tuple[nn.Module, str]] = []
        self.gradient_came: Callable[[Param], None] = no_forward_yet  # Unit.enter replaces it
        self.forget_whole()

    def forget_whole(self) -> None:
        self.memory: Tensor | None = None  # of `whole`, padding included
        self.whole: nn.Parameter | None = None  # see [Note: lifetime]
        self.kept: Tensor | None = None  # the gradient in reduce_dtype, summed over backwards that did not reduce it

    def put(self, p: nn.Parameter) -> None:
        for module, name in self.places:
            module._parameters[name] = p  # as setattr does, without its checks

    def remove(self) -> None:
        for module, name in self.places:
            module._parameters.pop(name, None)

    @property
    def current(self) -> nn.Parameter:
        module, name = self.places[0]
        return module._parameters[name]

    def use(self, memory: Tensor, requires_grad: bool) -> None:
        """Put the whole parameter, a view of `memory` (1-D) from its start, into the modules."""
        if self.whole is None:
            self.whole = nn.Parameter(memory.data[: self.shape.numel()].view(self.shape), requires_grad)
            vars(self.whole).update(self.attributes, _whole_of=self.name)  # for an error that names it
        self.whole.__class__ = nn.Parameter
        self.whole.requires_grad = self.requires_grad = requires_grad  # users may change it here, or on the shard
        if requires_grad and not self.whole._post_accumulate_grad_hooks:
            after_gradient(self.whole, self._gradient_came)
        self.put(self.whole)
        self.version = self.whole._version

    def _gradient_came(self, whole: nn.Parameter) -> None:
        refuse_sparse(whole.grad, self.name)
        self.gradient_came(self)

    def free(self, sharded: nn.Parameter) -> None:
        if self.whole.requires_grad != self.requires_grad:  # the user froze or thawed it while it was whole
            sharded.requires_grad = self.whole.requires_grad
        self.whole.__class__ = FreedParameter

    def keep_gradient(self, reduce_dtype: torch.dtype | None) -> None:
        """Add the gradient to `kept` in `reduce_dtype`. If that is its own dtype, autograd adds it up in `grad`."""
        gradient = self.whole.grad if self.whole is not None else None
        if gradient is not None and reduce_dtype not in (None, gradient.dtype):
            self.kept = gradient.to(reduce_dtype) if self.kept is None else self.kept.add_(gradient)
            self.whole.grad = None

    def take_gradient(self) -> Tensor | None:
        """Return and clear the whole gradient, summed since the last backward that reduced; None if there is none."""
        if self.whole is None:
            return None
        gradient, self.whole.grad = self.whole.grad, None
        kept, self.kept = self.kept, None
        if kept is None or gradient is None:
            return gradient if kept is None else kept
        return kept.add_(gradient)


def params_of(modules: list[tuple[str, nn.Module]], ignored: set[nn.Parameter], unit_module: nn.Module) -> list[Param]:
    """Return the parameters of `modules` without those `ignored`; a tied parameter once, with all its places."""
    params: dict[nn.Parameter, Param] = {}
    for module_name, module in modules:
        for name, p in module._parameters.items():
            if p is not None and p not in ignored:
                param = params.setdefault(p, Param(f"{module_name}.{name}".lstrip("."), p, unit_module))
                param.places.append((module, name))
    return list(params.values())


class PerParameter:
    """The parameters of a unit, sent together. S is the sum of their padded parts.

    Keeps: sharded, 1/N of each parameter and no padding; unsharded, N S elements of `param_dtype` more.
    """

    children_first = True  # the order of parameters in a unit, as in FSDP2

    def __init__(self, params: list[Param], ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None:
        for p in params:
            if not p.original.is_contiguous():
                raise ValueError(
                    f"rank {dist.get_rank()}: {p.name}, of shape {list(p.shape)} and stride {p.original.stride()}, is "
                    "not contiguous: shards are cut from rows, so make it contiguous before"
                )
        self.params, self.ranks, self.param_dtype = params, ranks, param_dtype
        for p in params:
            p.put(self._shard(p.original, on_cpu))
        self.refresh()

    @staticmethod
    def groups(params: list[Param]) -> list[list[Param]]:
        """Put all parameters of a unit into one message."""
        return [params] if params else []

    def _shard(self, p: nn.Parameter, on_cpu: bool) -> nn.Parameter:
        rows = self._rows(p.shape)
        start = min(self.ranks.shard_rank * rows, p.shape[0])
        mine = p.detach()[start : start + rows].clone()
        if on_cpu and not mine.is_meta:
            mine = mine.cpu()
        placements = [Shard(0)] if self.ranks.replicate_group is None else [Replicate(), Shard(0)]
        spec = DTensorSpec(self.ranks.mesh, tuple(placements), TensorMeta(p.shape, p.stride(), p.dtype))
        sharded = nn.Parameter(DTensor(mine, spec, requires_grad=False), requires_grad=p.requires_grad)
        vars(sharded).update(vars(p))
        return sharded

    def put_sharded(self) -> None:
        for p, sharded in zip(self.params, self.sharded_params, strict=True):
            p.put(sharded)

    def refresh(self) -> None:
        """Use parameters that were loaded, converted or moved, and drop the tensors made from the old ones."""
        self.sharded_params = [p.current for p in self.params]
        self.put_sharded()
        wire = self.param_dtype
        self.dtypes = [wire if wire and p.is_floating_point() else p.dtype for p in self.sharded_params]
        self.mixed = len(set(self.dtypes)) > 1  # then all parameters are sent as bytes
        self.sizes = [self._padded(p) for p in self.params]  # elements of a part
        self.wire_sizes = [n * (t.itemsize if self.mixed else 1) for n, t in zip(self.sizes, self.dtypes, strict=True)]
        for p in self.params:
            p.forget_whole()

    # Parameters: shards -> all_gather_input -> all_gather_output -> whole parameters

    def all_gather_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the all_gather_output, (N, S), and this rank's row of it, which is the all_gather_input."""
        shards, sizes = [sharded._local_tensor.view(-1) for sharded in self.sharded_params], self.wire_sizes
        if self.mixed:
            shards = [shard.to(dtype).view(torch.uint8) for dtype, shard in zip(self.dtypes, shards, strict=True)]
        dtype = torch.uint8 if self.mixed else self.dtypes[0]
        output = torch.empty(self.ranks.shard_size, sum(sizes), dtype=dtype, device=self.ranks.device)
        row = output[self.ranks.shard_rank]
        parts_and_paddings = chain(*((s.numel(), size - s.numel()) for s, size in zip(shards, sizes, strict=True)))
        torch._foreach_copy_(row.split(list(parts_and_paddings))[::2], shards, non_blocking=True)
        return output, row

    def use(self, output: Tensor | None) -> None:
        """Copy the parts of each parameter together. None: the shard group has only this rank, with one part."""
        memories = [self._allocate(p, dtype) for p, dtype in zip(self.params, self.dtypes, strict=True)]
        if output is None:
            locals_ = [sharded._local_tensor.view(1, -1) for sharded in self.sharded_params]
            torch._foreach_copy_(memories, locals_, non_blocking=True)
        else:
            memories = [memory.view(torch.uint8) for memory in memories] if self.mixed else memories
            torch.split_with_sizes_copy(output, self.wire_sizes, dim=1, out=memories)
        for p, sharded in zip(self.params, self.sharded_params, strict=True):
            p.use(p.memory.view(-1), sharded.requires_grad)

    def _allocate(self, p: Param, dtype: torch.dtype) -> Tensor:
        """Return memory for a whole parameter and its padding, (N, elements of a part), which is not filled yet."""
        if p.memory is None:
            size = self.ranks.shard_size, self._padded(p)
            p.memory = torch.empty(size, dtype=dtype, device=self.ranks.device)
        reallocate(p.memory)
        return p.memory

    def _rows(self, shape: torch.Size) -> int:
        """Number of rows in each rank's part of a parameter, padding included."""
        return -(-shape[0] // self.ranks.shard_size)

    def _padded(self, p: Param) -> int:
        """Number of elements in each rank's part of p, padding included."""
        return self._rows(p.shape) * p.shape[1:].numel()

    def free(self) -> None:
        for p, sharded in zip(self.params, self.sharded_params, strict=True):
            p.memory.untyped_storage().resize_(0)
            p.free(sharded)

    # Gradients: whole gradients -> reduce_scatter_input -> reduced shards

    def reduce_scatter_input(self, gradients: dict[int, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the gradients as (N, S) in `dtype`: row r has the parts that rank r keeps, padded; then the marks."""
        n, tensors, marks = self.ranks.shard_size, list(gradients.values()), self._marks(gradients)
        if marks:
            tensors.append(torch.tensor(marks, dtype=tensors[0].dtype, device=self.ranks.device).expand(n, -1))
        size = n, sum(self.sizes[i] for i in gradients) + len(marks)
        rows = torch.empty(size, dtype=dtype, device=self.ranks.device)
        return torch._chunk_cat(tensors, dim=0, num_chunks=n, out=rows)

    def _marks(self, used: Iterable[int]) -> list[float]:
        """Return a mark for each parameter, 1 if it was used: other ranks must agree. None are sent if all were."""
        unused = [p for i, p in enumerate(self.params) if i not in used and p.requires_grad]
        return [float(i in used) for i in range(len(self.params))] if unused else []

    def take_reduced_gradients(self, used: list[int], shard: Tensor) -> None:
        """Add each part of `shard`, (S,), to its sharded parameter's gradient, in the parameter's own dtype.

        A part is a view of `shard`. It becomes the gradient itself if there is none and dtype and device agree.
        """
        *parts, marks = shard.split([*(self.sizes[i] for i in used), len(self._marks(used))])
        if marks.numel():
            refuse_other_use([p.name for i, p in enumerate(self.params) if i not in used and marks[i]])
        for i, part in zip(used, parts, strict=True):
            sharded = self.sharded_params[i]
            mine = sharded._local_tensor
            gradient = part[: mine.numel()].view_as(mine).to(mine)
            if sharded.grad is None:
                sharded.grad = DTensor(gradient, sharded._spec, requires_grad=False)
            else:
                sharded.grad._local_tensor.add_(gradient)
            call_hooks(sharded)
