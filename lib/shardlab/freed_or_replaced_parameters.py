"""Parameters that must not be used: whole ones whose memory is free, those that shards have replaced, and later ones.

Any use raises an error that says what to do. Without it, programs would crash, or train wrongly without an error.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from shardlab.shard_groups import flat_shards, refuse_parts

replaced: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a parameter that was sharded -> a weak reference to its Param
ignored: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameters that fully_shard was told to ignore


class FreedParameter(nn.Parameter):
    """Class of a whole parameter while its memory is free: any use raises an error instead of reading nothing.

    The class of an object decides how Python handles calls on it, and can be changed in place; autograd's own C++
    references do not look at the class.
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(getattr(func, "__self__", None), "__name__", "") in ("shape", "dtype", "device", "grad", "grad_fn"):
            return super().__torch_function__(func, types, args, kwargs or {})
        freed = next(a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, cls))
        raise RuntimeError(
            f"rank {dist.get_rank()}: {freed._whole_of} was used after its unit was resharded, when its "
            "memory is free. Don't keep references to parameters from inside a forward; to read it, call unshard() on "
            "the unit first, or take the shard from parameters()."
        )


def no_forward_yet(p: Any) -> None:
    """Raise RuntimeError: backward computed a gradient before any forward made the schedule that reduces it."""
    raise RuntimeError(
        f"rank {dist.get_rank()}: backward reached {p.name} before any forward of the sharded model, and its gradient "
        "would be lost: call the model's forward"
    )


def computed_while_sharded(name: str) -> None:
    """Raise RuntimeError: backward used a parameter whose unit nobody had gathered for it."""
    raise RuntimeError(
        f"rank {dist.get_rank()}: backward computed with {name} while it was sharded: it came by a tensor "
        "that forward neither returned nor kept on a module: return it, or set_reshard_after_forward(False)"
    )


def called_while_sharded(name: str, unit: str) -> None:
    """Raise RuntimeError: a module inside a unit was called on its own."""
    raise RuntimeError(
        f"rank {dist.get_rank()}: {name} was called while its unit {unit} is sharded: call {unit}, whose forward "
        "gathers the parameters of all modules inside it, or its unshard() before"
    )


def forget_originals(params: list[Any]) -> None:
    """Drop the originals, so that their memory is freed; remember those to which other references exist."""
    for p in params:
        if p.original.requires_grad:
            p.original.register_post_accumulate_grad_hook(_original_got_a_gradient)
        replaced[p.original], p.original = weakref.ref(p), None


def _original_got_a_gradient(original: nn.Parameter) -> None:
    """Raise RuntimeError: a forward used a parameter as it was before sharding, which no optimizer steps."""
    raise RuntimeError(
        f"rank {dist.get_rank()}: forward used {name_of_replaced(original)} as it was before sharding, kept outside of "
        "the module's parameters, in a list or a closure: read it from its module in each forward"
    )


def fit_in_one_vector(params: list[Any]) -> None:
    """Raise ValueError if parameters can't share a flat parameter: on the meta device, or with different attributes."""
    first = params[0]
    if first.original.is_meta:
        raise ValueError(
            f"rank {dist.get_rank()}: {first.name} is on the meta device, and initialisers would not find it "
            "in a flat parameter: initialise the model first, or shard it with the layout PerParameter"
        )
    if other := next((p for p in params if repr(p.attributes) != repr(first.attributes)), None):
        raise ValueError(
            f"rank {dist.get_rank()}: {first.name} has the attributes {first.attributes}, {other.name} has "
            f"{other.attributes}; in one flat parameter they would be lost: shard with the layout PerParameter"
        )


def refuse_writes(params: Iterable[Any]) -> None:
    """Raise RuntimeError if a whole parameter, whose memory is free now, was written to: the write is lost.

    A write through `p.data` is not seen.
    """
    with torch._C.DisableTorchFunctionSubclass():  # they are FreedParameters
        written = [p for p in params if p.whole._version != p.version]
        lost = [p.name for p in written if not p.whole.untyped_storage().nbytes()]
    if lost:
        raise RuntimeError(
            f"rank {dist.get_rank()}: {', '.join(lost)} was written to while it was whole, and the write is lost: "
            "write to the shard, outside of forward"
        )


def refuse_other_use(names: list[str]) -> None:
    """Raise RuntimeError if there are names: those of parameters that got a gradient on other ranks only."""
    if names:
        raise RuntimeError(
            f"rank {dist.get_rank()}: {', '.join(names)} got a gradient on other ranks only: use the same "
            "parameters of a unit on every rank, if need be by adding 0 * p.sum()"
        )


def refuse_later_ones(modules: dict[nn.Module, str], layouts: list[Any]) -> None:
    """Raise RuntimeError for a parameter in a sharded model that no layout knows and nobody asked to ignore."""
    known = {id(p) for layout in layouts for p in (*layout.sharded_params, *(p.whole for p in layout.params))}
    for module, name in modules.items():
        for key, p in module._parameters.items():
            if p is not None and id(p) not in known and p not in ignored:
                raise RuntimeError(
                    f"rank {dist.get_rank()}: {f'{name}.{key}'.lstrip('.')} was replaced or added after the model had "
                    "been sharded: do that before"
                )


def name_of_replaced(original: nn.Parameter) -> str:
    p = replaced[original]()
    return p.name if p is not None else f"a parameter of shape {list(original.shape)}"


def _look_at_optimizer(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        if p in flat_shards:
            refuse_parts(optimizer, p)
        if whole_of := vars(p).get("_whole_of"):
            raise RuntimeError(
                f"rank {dist.get_rank()}: the optimizer holds {whole_of} whole, as the model has it between a "
                "forward and its backward, and gets no gradient: build the optimizer before, or run that forward "
                "under torch.no_grad()"
            )
        if p in replaced:
            raise RuntimeError(
                f"rank {dist.get_rank()}: the optimizer holds {name_of_replaced(p)} as it was before sharding, which "
                "the model does not use any more: build the optimizer after fully_shard"
            )


register_optimizer_step_pre_hook(_look_at_optimizer)
