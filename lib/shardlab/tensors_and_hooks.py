"""Tensors in the nested structures that modules take and return, and hooks on them."""

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
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
    values = [v for m in modules for key, v in vars(m).items() if key not in _OWN and isinstance(v, _KEEPS)]
    return [t for t in with_gradient(values) if t.grad_fn and t.grad_fn._sequence_nr() >= first_node]


_OWN = vars(nn.Module()).keys() - {"_buffers"}
_KEEPS = (Tensor, list, tuple, dict)
_WITHOUT_OUTPUTS = (str, bytes, int, float, type, nn.Module, torch.optim.Optimizer, FunctionType, BuiltinFunctionType)
_MOST_OBJECTS = 10_000  # in one output: who returns more of them may hide a tensor
_SEQUENCES = (list, tuple, set, frozenset, deque)


def _slots(cls: type) -> Iterable[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def after_gradient(p: nn.Parameter, method: Callable[[nn.Parameter], None]) -> None:
    """Call a bound `method` when autograd has accumulated `p.grad`, for as long as its object lives.

    A hook that held the object would keep it alive for as long as the parameter: Python's garbage collector does not
    see references inside autograd's hooks.
    """
    weak = weakref.WeakMethod(method)
    handle = p.register_post_accumulate_grad_hook(lambda p: None if weak() is None else weak()(p))
    weakref.finalize(method.__self__, handle.remove)


def call_hooks(sharded: nn.Parameter) -> None:
    """Call post-accumulate hooks, as autograd does, for gradients that autograd did not make.

    Raises RuntimeError for other hooks, which autograd would never call.
    """
    if sharded._backward_hooks:
        raise RuntimeError(
            f"{_me()}a parameter of shape {list(sharded.shape)} has a hook by register_hook, which a sharded parameter "
            "never calls: use register_post_accumulate_grad_hook"
        )
    for hook in (sharded._post_accumulate_grad_hooks or {}).values():
        hook(sharded)


def while_alive(method: Callable[[Any], None], of: Any) -> Callable[..., None]:
    """Return a hook on autograd's graph that calls `method(of)`, but does not keep either of them alive.

    A module may keep a tensor of the graph. If a hook on that tensor held the module, neither would ever be freed.
    """
    weak_method, weak = weakref.WeakMethod(method), weakref.ref(of)

    def hook(*_) -> None:
        if weak_method() is None or weak() is None:
            raise RuntimeError(f"{_me()}the model was deleted between its forward and backward: keep it in a variable")
        weak_method()(weak())

    return hook


def refuse_sparse(gradient: Tensor | None, name: str) -> None:
    """Raise RuntimeError for a sparse gradient: buckets, shards and copies need dense tensors. None is no gradient."""
    if gradient is not None and gradient.layout != torch.strided:
        raise RuntimeError(f"{_me()}the gradient of {name} is sparse: use layers with sparse=False")


def refuse_torchs_scaler(optimizer: torch.optim.Optimizer) -> None:
    """Raise RuntimeError in a step that torch's GradScaler calls: it has looked at this rank's `p.grad` only."""
    if hasattr(optimizer, "found_inf"):
        raise RuntimeError(
            f"{_me()}torch.amp.GradScaler does not see the gradients that {type(optimizer).__name__} uses: take "
            "shardlab.precision.GradScaler"
        )


def _me() -> str:
    return f"rank {dist.get_rank()}: " if dist.is_initialized() else ""


def before_backward(t: Tensor, hook: Callable[[Any], None]) -> None:
    """Call `hook` when backward is about to enter the operation that made `t`.

    A write in place takes a view out of the graph, and a hook on the view is then lost. So if `t` is a view, the hook
    is put on its base, which stays in the graph.
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


def inside_backward() -> bool:
    """Return whether autograd is running a backward on this thread."""
    return torch._C._current_graph_task_id() != -1


def reallocate(t: Tensor) -> None:
    """Give `t` its memory back if its storage was emptied. (`resize_` to the same size would allocate, too.)"""
    storage = t.untyped_storage()
    if storage.nbytes() < t.nbytes:
        storage.resize_(t.nbytes)
