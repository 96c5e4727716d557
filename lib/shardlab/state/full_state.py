"""Whole tensors on rank 0, assembled from all ranks' parts, and back: for a file of weights, or to inspect them.

All ranks must call these functions. To save and resume a training, use `checkpoint`: no rank then holds everything.

Source: torch.distributed.checkpoint.state_dict with StateDictOptions(full_state_dict=True, cpu_offload=True), and
broadcast_from_rank0=True for the way back.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardlab.state.barrier_and_rank_0_result import everybody_calls, from_rank_0, rank, world_size
from shardlab.state.flat_interval_chunks import Part, held
from shardlab.state.sharded_state import (
    Described,
    OptimizerMemory,
    check_names,
    model_state,
    optimizer_state,
    weights_have_changed,
)


def full_state_dict(model: nn.Module, *, timeout_s: float = 30.0) -> dict[str, Tensor]:
    """Return on rank 0 all parameters and buffers, whole, on the host, as the bare model's state_dict(); elsewhere {}.

    Call it on every rank. Sends: each sharded tensor in one reduce to rank 0. Keeps, besides the result: one whole
    tensor a rank at a time.

    Raises RuntimeError, naming the ranks, if some have not called it within `timeout_s`.
    """
    everybody_calls("full_state_dict", timeout_s)
    return _gathered(model_state(model))


def full_optimizer_state_dict(model: nn.Module, optimizer: Optimizer, *, timeout_s: float = 30.0) -> dict:
    """Return on rank 0 {"state": by name, "param_groups": ...}, whole; elsewhere {}. Otherwise like full_state_dict."""
    everybody_calls("full_optimizer_state_dict", timeout_s)
    mine = optimizer_state(model, optimizer)
    whole = _gathered({(name, key): value for name, states in mine["state"].items() for key, value in states.items()})
    full: dict = {"state": {}, "param_groups": mine["param_groups"]}
    for (name, key), value in whole.items():
        full["state"].setdefault(name, {})[key] = value
    return full if rank() == 0 else {}


@torch.inference_mode(False)
@torch.no_grad()
def load_full_state_dict(model: nn.Module, state: dict[str, Tensor], *, timeout_s: float = 30.0) -> None:
    """Load a full_state_dict: rank 0 passes whole tensors, the others {}, and every rank takes its part.

    Sends: a broadcast of each tensor. Keeps: one whole tensor a rank at a time.
    Raises ValueError on every rank if names or shapes are not the model's; the model is then unchanged.
    """
    everybody_calls("load_full_state_dict", timeout_s)
    mine = model_state(model)
    described = from_rank_0(lambda: {name: _described(t) for name, t in state.items()})
    check_names({name: t.shape for name, t in mine.items()}, {name: shape for name, (shape, _) in described.items()})
    for name, t in mine.items():
        _scatter(state.get(name), described[name], t)
    weights_have_changed(model)


@torch.inference_mode(False)
@torch.no_grad()
def load_full_optimizer_state_dict(
    model: nn.Module, optimizer: Optimizer, state: dict, *, timeout_s: float = 30.0
) -> None:
    """Load a full_optimizer_state_dict: rank 0 passes whole states, the others {}. Like load_full_state_dict."""
    everybody_calls("load_full_optimizer_state_dict", timeout_s)
    states = state.get("state", {})
    described = {name: {key: _described(value) for key, value in states[name].items()} for name in states}
    plain = {name: {k: v for k, v in states[name].items() if not torch.is_tensor(v)} for name in states}
    described, plain, groups = from_rank_0(lambda: (described, plain, state.get("param_groups")))
    memory = OptimizerMemory(model, optimizer, described)
    for name in described:
        mine = memory.by_name.get(name, {})
        mine |= plain[name]
        for key in sorted(described[name].keys() - plain[name].keys()):
            _scatter(states.get(name, {}).get(key), described[name][key], mine.get(key))
    memory.give_to_optimizer(groups)


# Between ranks


def _gathered(mine: dict[Any, Any]) -> dict[Any, Any]:
    """Return on rank 0, in host memory, whole tensors assembled from the ranks' parts; elsewhere {}.

    Each rank copies its part into zeros. Then the bytewise maximum is exact, also if several ranks have the same part.
    """
    described = {name: (_described(t), _is_sharded(t), None if torch.is_tensor(t) else t) for name, t in mine.items()}
    everyone = [described]
    if world_size() > 1:
        everyone = [None] * world_size()
        dist.all_gather_object(everyone, described)
    full = {}
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        shape_and_dtype, _, plain = next(theirs[name] for theirs in everyone if name in theirs)
        on_rank_0 = name in everyone[0] and not everyone[0][name][1]
        if shape_and_dtype is None:  # a number: every rank that has a shard knows it
            full[name] = plain
        elif not on_rank_0:
            full[name] = _assemble(*shape_and_dtype, mine.get(name))
        elif rank() == 0:
            full[name] = mine[name].detach().cpu().clone()
    return full if rank() == 0 else {}


def _assemble(shape: torch.Size, dtype: torch.dtype, mine: Tensor | None) -> Tensor | None:
    whole = torch.zeros(shape, dtype=dtype, device=_wire_device())
    for where, piece in held(mine) if mine is not None else ():
        whole[where] = piece.detach()
    if world_size() > 1:
        dist.reduce(whole.view(-1).view(torch.uint8), 0, op=dist.ReduceOp.MAX)
    return whole.cpu() if rank() == 0 else None


def _scatter(whole: Tensor | None, described: Described, mine: Tensor | None) -> None:
    """Broadcast rank 0's whole tensor; each rank copies its part into `mine`."""
    shape, dtype = described
    sent = torch.empty(shape, dtype=dtype, device=_wire_device()) if whole is None else whole.to(_wire_device())
    if world_size() > 1:
        dist.broadcast(sent.contiguous(), 0)
    for where, piece in held(mine) if mine is not None else ():
        piece.copy_(sent[where])


def _described(value: Any) -> Described | None:
    return (value.shape, value.dtype) if torch.is_tensor(value) else None


def _is_sharded(value: Any) -> bool:
    return type(value) is Part or isinstance(value, DTensor)


def _wire_device() -> str:
    return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"
