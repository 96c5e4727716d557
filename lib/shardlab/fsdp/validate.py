"""Mistakes that training would not survive, or survive silently wrong: found early and called by name."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from shardlab.fsdp.param import Param
from shardlab.fsdp.unit import State, Unit
from shardlab.rank_differences import checksum, difference
from shardlab.shard_groups import Ranks

_replaced: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter that was sharded -> its Param


def can_be_a_unit(module: nn.Module) -> None:
    """Raises ValueError if hooks on the module's forward would never run, or would run twice."""
    name, rank = type(module).__name__, dist.get_rank()
    if hasattr(module, "_unit"):
        raise ValueError(f"rank {rank}: this {name} is sharded already: call fully_shard once a module")
    if type(module).forward is nn.Module.forward:
        raise ValueError(
            f"rank {rank}: {name} has no forward of its own, so nothing could gather its parameters in time: "
            "call fully_shard on each module inside it"
        )


def can_be_sharded(managed: list[tuple[str, nn.Module]], params: list[Param]) -> None:
    """Raises ValueError for parameters that are somebody else's already, or have no rows, or dtypes of their own."""
    for name, module in managed:
        if "_unit_around" in vars(module):
            raise ValueError(
                f"rank {dist.get_rank()}: {name or type(module).__name__} is sharded already, by a module around it: "
                "call fully_shard on inner modules first"
            )
    for p in params:
        where = f"rank {dist.get_rank()}: {p.name}"
        if isinstance(p.original, DTensor):
            raise ValueError(f"{where} is a DTensor: parameters that are cut up by another scheme are not supported")
        if p.original in _replaced:
            raise ValueError(
                f"{where} is tied to {_replaced[p.original].name} of another unit, and would go its own way from now "
                "on: make one unit of both modules, fully_shard([a, b])"
            )
        if p.original.ndim == 0:
            raise ValueError(f"{where} is a scalar, without rows to share out: make it a vector of one element")
    trained = {p.original.dtype: p.name for p in params if p.original.requires_grad}
    if len(trained) > 1:
        listed = ", ".join(f"{name} {dtype}" for dtype, name in trained.items())
        raise ValueError(
            f"rank {dist.get_rank()}: the gradients of one unit are sent in one message, of one dtype, but it has "
            f"{listed}: convert one, or make a unit of its own for it"
        )


def replace(params: list[Param]) -> None:
    """Let go of the originals, so that their memory is free; those that somebody still holds are remembered."""
    for p in params:
        _replaced[p.original], p.original = p, None


def can_join_schedule(unit: Unit, name: str) -> None:
    """Raises RuntimeError if the unit has a root already, or no memory for its parameters."""
    where = f"rank {dist.get_rank()}: unit {name or type(unit.modules[0]).__name__}"
    if unit.schedule is not None:
        raise RuntimeError(f"{where} has run as a root of its own before: run the forward of the whole model first")
    meta = [name for m in unit.modules for name, p in m.named_parameters() if p.is_meta]
    if meta:
        raise RuntimeError(
            f"{where}: {', '.join(meta)} is on the meta device still: call to_empty(device=...) on the model, then "
            "initialise its parameters"
        )


def is_unsharded(unit: Unit, name: str) -> None:
    """Raises RuntimeError if a module inside of the unit is called on its own, when its parameters are not there."""
    if unit.state is not State.UNSHARDED:
        of, full_name = unit.name or type(unit.modules[0]).__name__, f"{unit.name}.{name}".lstrip(".")
        raise RuntimeError(
            f"rank {dist.get_rank()}: {full_name} was called while its unit {of} is sharded: call {of}, whose forward "
            "gathers the parameters of all modules inside it, or its unshard() before"
        )


def same_on_every_rank(params: list[Param], ranks: Ranks) -> None:
    """Compare checksums of names, shapes, dtypes and values. Raises ValueError, naming the first that differs."""
    mine = [f"{p.name} is {checksum(p.original)}" for p in params]
    if found := difference(mine, ranks.groups, ranks.device):
        rank, here, there = found
        raise ValueError(
            f"rank {dist.get_rank()}: parameters differ between ranks: here {here}, on rank {rank} {there}. Build the "
            "model from the same seed on every rank, load the same checkpoint, or broadcast rank 0's weights first"
        )


def _look_at_optimizer(optimizer: torch.optim.Optimizer, args, kwargs) -> None:
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        if isinstance(whole_of := getattr(p, "of", None), Param):
            raise RuntimeError(
                f"rank {dist.get_rank()}: the optimizer holds {whole_of.name} whole, as the model has it between a "
                "forward and its backward, and gets no gradient: build the optimizer before, or run that forward "
                "under torch.no_grad()"
            )
        if p in _replaced:
            raise RuntimeError(
                f"rank {dist.get_rank()}: the optimizer holds {_replaced[p].name} as it was before sharding, which "
                "the model does not use any more: build the optimizer after fully_shard"
            )


register_optimizer_step_pre_hook(_look_at_optimizer)
