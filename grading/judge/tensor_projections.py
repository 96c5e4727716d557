"""Reduce tensors to a few numbers that are cheap to send and hard to forge: ranks project them, judges compare them."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

N_DIRECTIONS = 4


def project(
    tensors: Iterable[tuple[str, Tensor | None]], seed: int, n_directions: int = N_DIRECTIONS
) -> dict[str, list[float]]:
    """Project each tensor on a few random directions, drawn from `seed`. Tensors that are None are left out.

    Four directions tell whether many tensors together are right; take more to compare each tensor by itself.

    DTensors are gathered first, so every rank must call this function.
    """
    projections = {}
    for i, (name, t) in enumerate(tensors):
        if t is not None:
            flat = _whole(t).cpu().flatten()
            draw = torch.Generator().manual_seed(seed * 10_000 + i)
            projections[name] = (torch.randn(n_directions, flat.numel(), generator=draw) @ flat).tolist()
    return projections


def project_rows(t: Tensor, seed: int, n_directions: int) -> list[list[float]]:
    """Project each row of a matrix on the same random directions, in float64: where errors of 1e-6 and less count."""
    draw = torch.Generator().manual_seed(seed + t.shape[1])
    along = torch.randn(t.shape[1], n_directions, generator=draw, dtype=torch.float64)
    return (t.detach().cpu().double() @ along / t.shape[1] ** 0.5).tolist()


def project_cheaply(tensors: Iterable[tuple[str, Tensor | None]], seed: int) -> dict[str, list[float]]:
    """Return a proof of work for timed laps: each tensor's product with a cosine, whose frequency depends on `seed`.

    It is computed where the tensors are, and only the products are copied to the host.
    """
    frequency = 0.1 + (seed % 9973) / 9973
    flat = {name: _whole(t).flatten() for name, t in tensors if t is not None}
    if not flat:
        return {}
    longest = max(flat.values(), key=Tensor.numel)
    wave = torch.cos(frequency * torch.arange(longest.numel(), device=longest.device))
    products = torch.stack([wave[: t.numel()] @ t for t in flat.values()]).tolist()
    return {name: [product] for name, product in zip(flat, products, strict=True)}


def share_of_product(p: Tensor, along: Tensor) -> float:
    """Return what this rank adds to the product of a tensor with `along`, of its whole shape; no message is sent.

    The ranks' sum is the product of the whole. Where several ranks have the same part, each adds its share.
    """
    part, parts = p.detach(), 1
    if isinstance(p, DTensor):
        part, mesh = part.to_local(), p.device_mesh
        size, begin = compute_local_shape_and_global_offset(p.shape, mesh, p.placements)
        along = along[tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))]
        parts = math.prod(mesh.size(i) for i, placement in enumerate(p.placements) if placement.is_shard())
    n_ranks = dist.get_world_size() if dist.is_initialized() else 1
    return parts / n_ranks * float((part.double() * along.to(part.device)).sum())


def _whole(t: Tensor) -> Tensor:
    t = t.detach()
    return (t.full_tensor() if isinstance(t, DTensor) else t).float()


def vector(projections: dict) -> Tensor:
    """Join one rank's projections to one float64 vector, in the order of their names."""
    return torch.tensor([x for name in sorted(projections) for x in projections[name]], dtype=torch.float64)


def distance(a: Tensor, b: Tensor) -> float:
    """Return the distance relative to b; infinite if a and b can't be compared."""
    return float((a - b).norm() / b.norm()) if a.shape == b.shape and torch.isfinite(a).all() else float("inf")


def factor(a: Tensor, b: Tensor) -> float:
    """Return the factor f for which f * b is the part of a that points along b."""
    return float(a @ b / (b @ b))


def parallel(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return True if a is a nonzero multiple of b, up to rounding."""
    return factor(a, b) != 0 and distance(a / factor(a, b), b) <= tolerance
