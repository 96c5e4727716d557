"""Tensors in the nested structures that modules take and return, and hooks on them."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def map_tensors(fn: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return `tree` with `fn` applied to each tensor in it: through lists, (named) tuples, dicts and dataclasses.

    Parts that `fn` does not change are not copied: the same objects come back.
    """
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, (list, tuple)):
        new = [map_tensors(fn, branch) for branch in tree]
        same = all(a is b for a, b in zip(tree, new, strict=True))
        return tree if same else tree._make(new) if hasattr(tree, "_make") else type(tree)(new)
    if is_dict := isinstance(tree, dict):
        old = tree
    elif is_dataclass(tree) and not isinstance(tree, type):
        old = {f.name: getattr(tree, f.name) for f in fields(tree)}
    else:
        return tree
    changed = {key: new for key, value in old.items() if (new := map_tensors(fn, value)) is not value}
    if changed:
        tree = copy.copy(tree)
        for key, value in changed.items():
            tree.__setitem__(key, value) if is_dict else object.__setattr__(tree, key, value)
    return tree


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


def cast(dtype: torch.dtype | None, tree: Any) -> Any:
    """Convert floating-point tensors to `dtype`; None leaves them as they are."""
    return tree if dtype is None else map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


def with_gradient(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def look(t: Tensor) -> Tensor:
        if t.requires_grad:
            found.append(t)
        return t

    map_tensors(look, tree)
    return found


def before_backward(t: Tensor, hook: Callable[[Any], None]) -> None:
    """Call `hook` when backward is about to enter the operation that made `t`.

    A write in place takes a view out of the graph, and a hook on the view is then lost. So if `t` is a view, its base
    gets the hook: the base stays in the graph.
    """
    node = t.grad_fn if t._base is None else t._base.grad_fn
    if node is None:
        t.register_hook(hook)
    else:
        node.register_prehook(hook)


def after_backward(tree: Any, call: Callable[[], None]) -> Any:
    """Pass `tree`'s tensors through an autograd function that calls `call()` once all their gradients are computed."""
    tensors = with_gradient(tree)
    if not tensors:
        return tree
    watched = iter(_AfterBackward.apply(call, *tensors))
    return map_tensors(lambda t: next(watched) if t.requires_grad else t, tree)


class _AfterBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: Callable[[], None], *tensors: Tensor):
        ctx.call = call
        return tensors

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        ctx.call()
        return None, *gradients
