"""Apply recomputation to a model from outside, without changing the model's code."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl

from shardlab.recompute.region import checkpoint


def checkpoint_wrapper(
    module: nn.Module, checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT, **checkpoint_kwargs
) -> nn.Module:
    """Checkpoint every forward of `module` from now on and return it. Use the result: torch's is a new module.

    Its class, hooks and parameter names stay the same. Only its `forward` is replaced, inside of the hooks, including
    those of `fully_shard`. `del module.forward` undoes it.

    Raises ValueError if the module is checkpointed already; TypeError for an option that `checkpoint` does not have.
    """
    if unknown := checkpoint_kwargs.keys() - signature(checkpoint).parameters.keys():
        raise TypeError(f"checkpoint has no option {', '.join(sorted(unknown))}")
    if isinstance(module.forward, partial) and module.forward.func is checkpoint:
        raise ValueError(f"this {type(module).__name__} is checkpointed already; twice would recompute it twice")
    reentrant = checkpoint_impl is CheckpointImpl.REENTRANT
    module.forward = partial(checkpoint, module.forward, use_reentrant=reentrant, **checkpoint_kwargs)
    return module


def checkpoint_blocks(blocks: Iterable[nn.Module], every: int = 1, **checkpoint_kwargs) -> None:
    """Checkpoint every `every`-th block: the others keep their activations, and 1/every of the forward runs twice."""
    for i, block in enumerate(blocks, start=1):
        if i % every == 0:
            checkpoint_wrapper(block, **checkpoint_kwargs)


def apply_activation_checkpointing(
    model: nn.Module,
    checkpoint_wrapper_fn: Callable[[nn.Module], nn.Module] = checkpoint_wrapper,
    check_fn: Callable[[nn.Module], bool] = lambda _: True,
) -> None:
    """Replace every submodule of `model` for which `check_fn` is true by `checkpoint_wrapper_fn(child)`.

    A child with several parents is wrapped once.
    """
    wrapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if check_fn(child):
                if child not in wrapped:
                    wrapped[child] = checkpoint_wrapper_fn(child)
                setattr(parent, name, wrapped[child])
