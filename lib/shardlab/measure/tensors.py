"""The tensors that own bytes, wherever they are kept."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def plain_tensors(tree) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dicts; of a wrapper such as DTensor or NF4, the tensors inside it."""
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
