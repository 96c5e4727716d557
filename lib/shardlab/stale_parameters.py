"""A parameter whose memory is free, and which raises an error instead of crashing."""

import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn


class FreedParameter(nn.Parameter):
    """Class of a whole parameter while its memory is free: any use raises an error instead of reading nothing.

    An object's class decides how Python calls on it are handled, and can be changed in place; autograd's own C++
    references do not look at it.
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(getattr(func, "__self__", None), "__name__", "") in ("shape", "dtype", "device", "grad"):
            return super().__torch_function__(func, types, args, kwargs or {})
        freed = next(a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, cls))
        raise RuntimeError(
            f"rank {dist.get_rank()}: {freed.of.name} was used after its unit was resharded, when its "
            "memory is free. Don't keep references to parameters from inside a forward; to read it, call unshard() on "
            "the unit first, or take the shard from parameters()."
        )
