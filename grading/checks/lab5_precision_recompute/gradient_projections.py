"""The gradients of a model that the answer may have changed, as projections that can be compared by name."""

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from grading.judge.tensor_projections import project, share_of_product

N_DIRECTIONS = 16  # on which each gradient is projected, so that each can be compared by itself


def places_of(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return where each parameter is found, also when modules around it have been replaced: name -> (owner, name)."""
    split = {name: name.rpartition(".") for name, _ in module.named_parameters()}
    return {name: (module.get_submodule(path), own) for name, (path, _, own) in split.items()}


def gradients_of(places: dict[str, tuple[nn.Module, str]], seed: int) -> dict[str, list[float]]:
    """Project every gradient that there is. Neither bytes nor FLOPs of it are counted."""
    with _disable_current_modes():
        found = ((name, getattr(owner, own).grad) for name, (owner, own) in places.items())
        return project(found, seed, N_DIRECTIONS)


def shares_of_weights(places: dict[str, tuple[nn.Module, str]]) -> dict[str, float]:
    """Return what this rank adds to each parameter's product with a cosine, without a message or counted bytes."""
    with _disable_current_modes():
        found = ((name, getattr(owner, own)) for name, (owner, own) in places.items())
        return {name: share_of_product(p, torch.arange(p.numel()).cos().view(p.shape)) for name, p in found}
