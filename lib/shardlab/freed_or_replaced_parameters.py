"""Parameters that must not be used any more: whole ones whose memory is free, and those that shards have replaced.

Any use raises an error that says what to do. Without it, programs would crash, or train without changing anything.
"""

import weakref
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

replaced: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a parameter that was sharded -> a weak reference to its Param


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


def forget_originals(params: list[Any]) -> None:
    """Drop the originals, so that their memory is freed; remember those to which other references exist."""
    for p in params:
        replaced[p.original], p.original = weakref.ref(p), None


def name_of_replaced(original: nn.Parameter) -> str:
    p = replaced[original]()
    return p.name if p is not None else f"a parameter of shape {list(original.shape)}"


def _look_at_optimizer(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for p in (p for group in optimizer.param_groups for p in group["params"]):
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
