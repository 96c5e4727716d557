"""Checks that find mistakes early which would stop training later, or silently make it wrong."""

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from shardlab.freed_or_replaced_parameters import called_while_sharded, name_of_replaced, replaced
from shardlab.fsdp.param import Param
from shardlab.fsdp.unit import State, Unit


def check_unit(module: nn.Module) -> None:
    """Raise ValueError if hooks on the module's forward would never run, or would run twice."""
    name, rank = type(module).__name__, dist.get_rank()
    if hasattr(module, "_fsdp_unit"):
        raise ValueError(f"rank {rank}: this {name} is sharded already: call fully_shard once a module")
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):  # torch.compile's wrapper has it
        raise ValueError(
            f"rank {rank}: {name} has no forward of its own, so nothing could gather its parameters in time: "
            "call fully_shard on each module inside it"
        )


def check_parameters(managed: list[tuple[str, nn.Module]], params: list[Param]) -> None:
    """Raise ValueError if a parameter is in another unit, a DTensor, a scalar or has hooks, or if dtypes differ."""
    for name, module in managed:
        if "_fsdp_unit_around" in vars(module):
            raise ValueError(
                f"rank {dist.get_rank()}: {name or type(module).__name__} is sharded already, by a module around it: "
                "call fully_shard on inner modules first"
            )
    for p in params:
        where = f"rank {dist.get_rank()}: {p.name}"
        if isinstance(p.original, DTensor):
            raise ValueError(f"{where} is a DTensor: parameters that are cut up by another scheme are not supported")
        if p.original in replaced:
            raise ValueError(
                f"{where} is tied to {name_of_replaced(p.original)} of another unit, and would go its own way from now "
                "on: make one unit of both modules, fully_shard([a, b])"
            )
        if hasattr(p.original, "fsdp_pre_all_gather"):
            raise ValueError(f"{where} has fsdp_pre_all_gather, which only PyTorch's fully_shard calls: use that one")
        if p.original._backward_hooks or p.original._post_accumulate_grad_hooks:
            raise ValueError(f"{where} has hooks, and another parameter takes its place: register them afterwards")
        if p.original.ndim == 0:
            raise ValueError(f"{where} is a scalar, without rows to share out: make it a vector of one element")
    trained = {p.original.dtype: p.name for p in params if p.original.requires_grad}
    if len(trained) > 1:
        listed = ", ".join(f"{name} {dtype}" for dtype, name in trained.items())
        raise ValueError(
            f"rank {dist.get_rank()}: the gradients of one unit are sent in one message, of one dtype, but it has "
            f"{listed}: convert one, or make a unit of its own for it"
        )


def can_join_schedule(unit: Unit, name: str) -> None:
    """Raise RuntimeError if the unit has a root already, or a parameter is on the meta device."""
    where = f"rank {dist.get_rank()}: unit {name or type(unit.modules[0]).__name__}"
    if unit.schedule is not None:
        raise RuntimeError(f"{where} has run as a root of its own before: run the forward of the whole model first")
    if meta := ", ".join(name for m in unit.modules for name, p in m.named_parameters() if p.is_meta):
        raise RuntimeError(f"{where}: {meta} is still on the meta device: call to_empty(device=...) and initialise it")


def is_unsharded(unit: Unit, name: str) -> None:
    """Raise RuntimeError if a module inside the unit is called on its own while the parameters are sharded."""
    if unit.state is not State.UNSHARDED:
        full_name = f"{unit.name}.{name}".lstrip(".") if len(unit.modules) == 1 else name
        called_while_sharded(full_name, unit.name or type(unit.modules[0]).__name__)
