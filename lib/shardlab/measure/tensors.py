"""Find the tensors that own bytes in nested structures and inside wrapper tensors."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def plain_tensors(tree) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts; for a wrapper such as DTensor or NF4, its inner tensors."""
    if isinstance(tree, Tensor):
        if is_traceable_wrapper_subclass(tree):
            for name in tree.__tensor_flatten__()[0]:
                yield from plain_tensors(getattr(tree, name))
        elif tree.layout is torch.strided:
            yield tree
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from plain_tensors(branch)
    elif isinstance(tree, dict):
        yield from plain_tensors(list(tree.values()))
