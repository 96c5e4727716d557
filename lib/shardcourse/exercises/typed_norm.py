"""Check of lesson 24's exercise: the norm of all gradients on a mesh, by types and by numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardcourse.experiments.typed_ranks import AXES, MISSING, SHAPE, Program, check, put, spmd
from shardlab import LaunchError, launch


def check_norm(norm: Program) -> str:
    """Return in words what is wrong with the reader's function, or that it is right."""
    if spmd is None:
        return MISSING
    try:
        said = check(norm, shards=True)
        if said.startswith("refused"):
            return f"The checker says: {said}"
        right = launch(_right, 1, device="cpu", stream=False)[0]
        ranks = launch(_on_rank, 4, norm, device="cpu", stream=False)
    except LaunchError as error:
        return f"The checker accepts it, but on four ranks it fails. {str(error).strip().splitlines()[-1]}"
    except (TypeError, ValueError, RuntimeError, AttributeError, NameError) as error:
        return f"It fails. {type(error).__name__}: {str(error).splitlines()[0]}"
    return _compared(ranks, right)


def _compared(ranks: list[float | str], right: dict[str, float]) -> str:
    if words := next((found for found in ranks if isinstance(found, str)), ""):
        return words
    if max(ranks) - min(ranks) > 1e-9 * max(ranks):
        return f"The checker accepts it, but the ranks have different norms: {', '.join(f'{n:.4f}' for n in ranks)}."
    names = {f"{value:.9f}": name for name, value in right.items()}
    name = names.get(f"{ranks[0]:.9f}", "")
    if name == "right":
        return f"Right: the checker accepts it, and four ranks have the norm of one process, {ranks[0]:.4f}."
    cause = f" {name}" if name else " A claim may be false, such as `reinterpret`, or a divisor."
    return f"The checker accepts it, but the norm is {ranks[0]:.4f}, and should be {right['right']:.4f}.{cause}"


def _on_rank(norm: Program) -> float | str:
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=AXES)
    with spmd.set_current_mesh(mesh):
        found = norm(mesh)
    if not isinstance(found, Tensor) or found.numel() != 1:
        return f"my_norm should return one number as a tensor, not {type(found).__name__}."
    return found.item()


def _right() -> dict[str, float]:
    """Return the norm in one process, and those that likely mistakes lead to, in words."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=AXES)
    with spmd.set_current_mesh(mesh):
        squares = _squares(mesh)
    return {
        "right": sum(squares).sqrt().item(),
        "It counts w0 twice, once for each tp rank.": (2 * squares[0] + squares[1] + squares[2]).sqrt().item(),
        "It is the square: the root is missing.": sum(squares).item(),
        "w0's gradient is not in it.": (squares[1] + squares[2]).sqrt().item(),
        "Its gradients are half as large: the loss is already a sum over dp.": sum(squares).sqrt().item() / 2,
    }


def _squares(mesh: DeviceMesh) -> list[Tensor]:
    """Return the squared norm of each weight's gradient, without any collective."""
    whole = {"dp": spmd.R, "tp": spmd.R}
    x, *weights = (put(mesh, shape, grad=shape != (8, 4), **whole) for shape in ((8, 4), (4, 4), (4, 6), (6, 4)))
    w0, w1, w2 = weights
    y = F.silu(x @ w0 @ w1) @ w2
    gradients = torch.autograd.grad(y.square().sum() / 8, weights)
    return [g.square().sum() for g in gradients]
