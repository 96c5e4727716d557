"""Find, convert and move tensors in the nested structures that modules take, keep and return."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def modules_of(root: nn.Module, units: type, children_first: bool) -> list[tuple[str, nn.Module]]:
    """Return (name, module) for root and the modules below it, without other `units`."""
    seen: set[nn.Module] = set()

    def walk(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        if module in seen:
            return []
        seen.add(module)
        inner = ((n, m) for n, m in module.named_children() if not isinstance(m, units))
        below = [pair for n, m in inner for pair in walk(f"{name}.{n}".lstrip("."), m)]
        return [*below, (name, module)] if children_first else [(name, module), *below]

    return walk("", root)


def map_tensors(fn: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return `tree` with `fn` applied to each tensor in it: through lists, (named) tuples, dicts and dataclasses.

    Parts that `fn` does not change are not copied: the same objects come back.
    """
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, (list, tuple)):
        new = [map_tensors(fn, branch) for branch in tree]
        same = all(a is b for a, b in zip(tree, new, strict=True))
        if same or isinstance(tree, tuple):
            return tree if same else tree._make(new) if hasattr(tree, "_make") else type(tree)(new)
        tree = copy.copy(tree)  # a user's class may have attributes, and another constructor
        tree[:] = new
        return tree
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


def move_to(device: torch.device, tensors: Iterable[Tensor]) -> None:
    """Move tensors in place; those on the meta device, which have no values, stay there."""
    for t in tensors:
        if t.device not in (device, torch.device("meta")):
            t.data = t.to(device)


def cast(dtype: torch.dtype | None, tree: Any) -> Any:
    """Convert floating-point tensors to `dtype`; None leaves them as they are."""
    return tree if dtype is None else map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


def with_gradient(tree: Any) -> list[Tensor]:
    """Return the tensors in `tree` that require grad, in all structures that `map_tensors` handles."""
    found: list[Tensor] = []

    def look(t: Tensor) -> Tensor:
        if t.requires_grad:
            found.append(t)
        return t

    map_tensors(look, tree)
    return found


def with_gradient_anywhere(value: Any) -> list[Tensor]:
    """Return the tensors in `value` that operations with a gradient made, also in sets and in objects of any class.

    Leaves, such as parameters, are left out: backward enters no operation through them.
    """
    found, to_see, seen = [], [value], set()
    while to_see:
        each = to_see.pop()
        if isinstance(each, Tensor):
            found += [each] if each.grad_fn is not None else []
        elif id(each) not in seen and len(seen) < _MOST_OBJECTS and not isinstance(each, _WITHOUT_OUTPUTS):
            seen.add(id(each))
            slots = (getattr(each, name, None) for cls in type(each).__mro__ for name in _slots(cls))
            to_see += [*slots, *getattr(each, "__dict__", {}).values()]
            to_see += each.values() if isinstance(each, dict) else each if isinstance(each, _SEQUENCES) else ()
    return found


def kept_with_gradient(modules: Iterable[nn.Module], first_node: int) -> list[Tensor]:
    """Return tensors that modules keep as attributes, such as an auxiliary loss, if made since node `first_node`."""
    values = [v for m in modules for key in vars(m).keys() - _OWN if isinstance(v := vars(m)[key], _KEEPS)]
    return [t for t in with_gradient(values) if t.grad_fn and t.grad_fn._sequence_nr() >= first_node]


_OWN = vars(nn.Module()).keys() - {"_buffers"}
_KEEPS = (Tensor, list, tuple, dict)
_WITHOUT_OUTPUTS = (str, bytes, int, float, type, nn.Module, torch.optim.Optimizer, FunctionType, BuiltinFunctionType)
_MOST_OBJECTS = 10_000  # in one output: who returns more of them may hide a tensor
_SEQUENCES = (list, tuple, set, frozenset, deque)


def _slots(cls: type) -> Iterable[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def reallocate(t: Tensor) -> None:
    """Give `t` its memory back if its storage was emptied. (`resize_` to the same size would allocate, too.)"""
    storage = t.untyped_storage()
    if storage.nbytes() < t.nbytes:
        storage.resize_(t.nbytes)
