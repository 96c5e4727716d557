"""Call functions at moments of a backward: before an operation, after a gradient, at the end."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.nested_tensors import map_tensors, with_gradient


def after_gradient(p: nn.Parameter, method: Callable[[nn.Parameter], None]) -> None:
    """Call a bound `method` when autograd has accumulated `p.grad`, for as long as its object lives.

    A hook that held the object would keep it alive for as long as the parameter: Python's garbage collector does not
    see references inside autograd's hooks.
    """
    weak, function = weakref.ref(method.__self__), method.__func__
    handle = p.register_post_accumulate_grad_hook(lambda p: function(me, p) if (me := weak()) is not None else None)
    weakref.finalize(method.__self__, handle.remove)


def only_watching(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Mark a hook that measures and changes nothing: it may stay on a sharded parameter, which never calls it."""
    vars(hook)["only_watches"] = True
    return hook


def call_hooks(sharded: nn.Parameter) -> None:
    """Call post-accumulate hooks, as autograd does, for gradients that autograd did not make.

    Raises RuntimeError for other hooks, which autograd would never call, unless they are `only_watching`.
    """
    if not all(hasattr(hook, "only_watches") for hook in (sharded._backward_hooks or {}).values()):
        raise RuntimeError(
            f"{_me()}a parameter of shape {list(sharded.shape)} has a hook by register_hook, which a sharded parameter "
            "never calls: use register_post_accumulate_grad_hook"
        )
    check_gradient(sharded, f"a parameter of shape {list(sharded.shape)}")
    for hook in (sharded._post_accumulate_grad_hooks or {}).values():
        hook(sharded)


def while_alive(method: Callable[[Any], None], of: Any) -> Callable[..., None]:
    """Return a hook on autograd's graph that calls `method(of)`, but does not keep either of them alive.

    A module may keep a tensor of the graph. If a hook on that tensor held the module, neither would ever be freed.
    """
    weak_self, function, weak = weakref.ref(method.__self__), method.__func__, weakref.ref(of)

    def hook(*_) -> None:
        me, its = weak_self(), weak()
        if me is None or its is None:
            raise RuntimeError(f"{_me()}the model was deleted between its forward and backward: keep it in a variable")
        function(me, its)

    return hook


def refuse_sparse(t: Tensor | None, name: str) -> None:
    """Raise RuntimeError if a parameter, buffer or gradient is sparse: buckets, shards, copies need dense tensors."""
    if t is not None and t.layout != torch.strided:
        raise RuntimeError(f"{_me()}{name} or its gradient is sparse: use layers with sparse=False")


def check_gradient(p: nn.Parameter, name: str) -> None:
    """Raise RuntimeError if p's gradient is sparse, or if an optimizer steps p before its mean is there."""
    refuse_sparse(p.grad, name)
    if hasattr(p, "_in_backward_optimizers"):
        raise RuntimeError(f"{_me()}_apply_optimizer_in_backward does not wait for the mean over ranks: call step()")


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
