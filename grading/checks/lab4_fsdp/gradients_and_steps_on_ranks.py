"""Record on the ranks what a wrapped model learns: gradients, and each step beside AdamW's on the same gradients."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlab.measure.traffic import record_traffic
from shardlab.nested_tensors import plain_tensors

SCALES = (1.0, 64.0, 1 / 16)  # of each step's loss: what clips or rescales gradients makes them scale otherwise
FREQUENCIES = 8
FEW_ELEMENTS = 16  # a collective this small is a count or a checksum
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def record_learning(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, data: list) -> dict:
    """Return a projection of the gradients of two batches, and how far each of three steps is from AdamW's.

    The gradients are of the same weights; a loss is `SCALES` times the model's.
    """
    shards = {name: _local(p) for name, p in model.named_parameters() if _local(p).numel()}
    start = {name: t.detach().clone() for name, t in shards.items()}
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    gradients, dtypes = [], {"weights": _dtypes(shards.values())}
    with _products() as products, record_traffic() as traffic:
        for scale, batch in list(zip(SCALES, data, strict=True))[:2]:
            (scale * model(*batch)).backward()
            found = _gradients(model)
            gradients.append(project(start, found, scale))
            dtypes |= {"gradients": _dtypes(found.values())}
            optimizer.zero_grad()
    dtypes |= {
        "matrix products": sorted(products),
        "messages": sorted({c.dtype for c in traffic.collectives if _elements(c) > FEW_ELEMENTS}),
    }
    errors = _steps_beside_adamw(model, optimizer, lr, data)
    states = [t for state in optimizer.state.values() for t in plain_tensors(list(state.values()))]
    return {
        "gradients": gradients,
        "without_gradient": [name for name in start if name not in found],
        "not_trained": [name for name, p in model.named_parameters() if id(p) not in trained],
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "is_adamw": isinstance(optimizer, torch.optim.AdamW),
        "settings": _other_settings(optimizer, lr) if isinstance(optimizer, torch.optim.AdamW) else [],
        "step_errors": errors,
        "dtypes": dtypes | {"optimizer states": _dtypes(states)},
    }


def project(start: dict[str, Tensor], gradients: dict[str, Tensor], scale: float) -> dict:
    """Project gradients on directions that do not depend on how they are sharded: a function of each initial weight.

    Equal initial weights, such as the norms' ones, are told apart by no function: of these, the squares are summed.
    Sums over ranks are those of the whole gradient.
    """
    waves, squares, elements = torch.zeros(FREQUENCIES, dtype=torch.float64), 0.0, 0
    for name, gradient in gradients.items():
        w, g = (t.detach().double().flatten() for t in (start[name], gradient))
        ones = w == 1
        squares += g[ones].square().sum().item()
        for i in range(FREQUENCIES):
            waves[i] += (g * torch.cos((500 + 137 * i) * w))[~ones].sum().cpu()
        elements += g.numel()
    return {"waves": (waves / scale).tolist(), "squares_of_norms": squares / scale**2, "elements": elements}


def _steps_beside_adamw(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, data: list) -> list[float]:
    """Return, for each step, the largest distance of a shard from AdamW's, relative to how far AdamW moved it."""
    params = [p for p in model.parameters() if _local(p).numel()]
    start = [_local(p).detach().clone() for p in params]
    twins = [t.clone().requires_grad_() for t in start]
    adamw, errors = torch.optim.AdamW(twins, lr=lr), []
    for scale, batch in zip(SCALES, data, strict=True):
        (scale * model(*batch)).backward()
        for twin, p in zip(twins, params, strict=True):
            twin.grad = None if p.grad is None else _local(p.grad).detach().clone().view_as(twin).to(twin)
        optimizer.step()
        adamw.step()
        optimizer.zero_grad()
        pairs = zip(params, twins, start, strict=True)
        errors.append(max(_distance(_local(p).detach() - t.detach(), t.detach() - s) for p, t, s in pairs))
    return errors


def _distance(off: Tensor, moved: Tensor) -> float:
    if not off.isfinite().all():
        return 1e9
    return min(1e9, off.double().norm().item() / max(moved.double().norm().item(), 1e-30))


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return this rank's gradients by name, without empty ones."""
    named = {name: p.grad for name, p in model.named_parameters() if _local(p).numel()}
    return {name: _local(g) for name, g in named.items() if g is not None}


def _local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


def _elements(c) -> int:
    return sum(torch.Size(shape).numel() for shape in c.shape)


def _dtypes(tensors: Iterable[Tensor]) -> list[str]:
    return sorted({str(t.dtype) for t in tensors if t.numel() > 1})


def _other_settings(optimizer: torch.optim.AdamW, lr: float) -> list[str]:
    """Return the settings that are not AdamW's defaults with this lr. How it is computed (`foreach`) is left open."""
    due = torch.optim.AdamW([nn.Parameter(torch.empty(1))], lr=lr).defaults
    open_to_all = ("foreach", "fused", "capturable", "differentiable")
    return sorted(
        {
            f"{name}={group.get(name)} instead of {value}"
            for group in optimizer.param_groups
            for name, value in due.items()
            if name not in open_to_all and group.get(name) != value
        }
    )


class _Products(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self.dtypes.add(str(result.dtype))
        return result


@contextmanager
def _products() -> Iterator[set[str]]:
    """Collect the dtypes in which matrices are multiplied."""
    with _Products() as mode:
        yield mode.dtypes
