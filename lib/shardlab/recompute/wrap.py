"""Recomputation applied to a model from outside: the model is not told."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl

from shardlab.recompute.region import checkpoint


def checkpoint_wrapper(
    module: nn.Module, checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT, **checkpoint_kwargs
) -> nn.Module:
    """Checkpoint every forward of `module` from now on; returns the module itself. torch's returns another: use that.

    Its class, hooks and the names of its parameters stay as they are. Only its `forward` is replaced, inside of the
    hooks, those of `fully_shard` included. `del module.forward` takes it back.

    Raises ValueError if the module is checkpointed already.
    """
    if isinstance(module.forward, partial) and module.forward.func is checkpoint:
        raise ValueError(f"this {type(module).__name__} is checkpointed already; twice would recompute it twice")
    reentrant = checkpoint_impl is CheckpointImpl.REENTRANT
    module.forward = partial(checkpoint, module.forward, use_reentrant=reentrant, **checkpoint_kwargs)
    return module


def checkpoint_blocks(blocks: Iterable[nn.Module], every: int = 1, **checkpoint_kwargs) -> None:
    """Checkpoint each `every`-th block: the others keep their activations, and 1/every of the forward is paid again."""
    for i, block in enumerate(blocks, start=1):
        if i % every == 0:
            checkpoint_wrapper(block, **checkpoint_kwargs)


def apply_activation_checkpointing(
    model: nn.Module,
    checkpoint_wrapper_fn: Callable[[nn.Module], nn.Module] = checkpoint_wrapper,
    check_fn: Callable[[nn.Module], bool] = lambda _: True,
) -> None:
    """Put `checkpoint_wrapper_fn(child)` in the place of every submodule of `model` for which `check_fn` is true.

    A child of several parents is wrapped once.
    """
    wrapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if check_fn(child):
                if child not in wrapped:
                    wrapped[child] = checkpoint_wrapper_fn(child)
                setattr(parent, name, wrapped[child])
