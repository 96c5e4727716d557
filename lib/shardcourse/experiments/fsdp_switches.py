"""FSDP1's switches and what replaces each in FSDP2: both run from the same weights and are compared, for lesson 6b."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP

from shardcourse.experiments.measured_step import ForwardBackward, forward_backward, my_batch
from shardlab import local_device
from shardlab.measure.traffic import record_traffic
from shardlab.model import Block, Transformer, preset

Wrap = Callable[[nn.Module], nn.Module]
Result = tuple[float, dict[str, int], float]  # the second step's loss, messages by kind, bytes sent


def fsdp1(model: nn.Module, policy: Callable | None = ModuleWrapPolicy({Block}), **options) -> FSDP:  # noqa: B008
    """Wrap in FSDP1 with one unit for each block, or with the units of another wrap policy; show no warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NO_SHARD is deprecated; frozen parameters in a unit take memory
        return FSDP(model, auto_wrap_policy=policy, device_id=local_device(), **options)


def fsdp2(model: nn.Module, **options) -> nn.Module:
    """Shard with FSDP2: one unit for each block, and the root."""
    for unit in (*model.blocks, model):
        fully_shard(unit, **options)
    return model


@dataclass(frozen=True)
class Switch:
    old: Wrap
    replacement: str
    new: Wrap
    old_step: ForwardBackward = forward_backward
    new_step: ForwardBackward = forward_backward


def _mesh(replicas: int):
    sizes = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh(local_device().type, sizes, mesh_dim_names=("replicate", "shard"))


def _strategy(name: str) -> Wrap:
    options = (lambda: {"device_mesh": _mesh(2)}) if "HYBRID" in name else dict
    return lambda model: fsdp1(model, sharding_strategy=ShardingStrategy[name], **options())


def prefetch_forward(model: nn.Module) -> nn.Module:
    model = fsdp2(model)
    for unit, following in zip((model, *model.blocks), model.blocks, strict=False):
        unit.set_modules_to_forward_prefetch([following])
    return model


def no_backward_prefetch(model: nn.Module) -> nn.Module:
    model = fsdp2(model)
    for unit in (model, *model.blocks):
        unit.set_modules_to_backward_prefetch([unit])  # itself: there is nothing to gather
    return model


def _unlike_rank_0(model: nn.Module) -> nn.Module:
    for p in model.parameters() if dist.get_rank() else ():
        nn.init.normal_(p)
    return model


def _sync_module_states(model: nn.Module) -> nn.Module:
    """Broadcast rank 0's weights, as sync_module_states=True does; FSDP1 does it on GPUs only."""
    model = _unlike_rank_0(model)
    for t in (*model.parameters(), *model.buffers()):
        dist.broadcast(t.detach(), src=0)
    return fsdp1(model)


def from_rank_0(model: nn.Module) -> nn.Module:
    """Shard, and then send each rank its shards of rank 0's weights."""
    full = model.state_dict() if dist.get_rank() == 0 else {}
    model = fsdp2(model)
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


def _make_real(module: nn.Module, recurse: bool = False) -> nn.Module:
    module.to_empty(device=local_device(), recurse=recurse)
    for p in module.parameters(recurse):
        nn.init.constant_(p, 0.02)
    return module


def _no_sync(model: nn.Module, *inputs):
    with model.no_sync():
        forward_backward(model, *inputs)
    return forward_backward(model, *inputs)


def _no_gradient_sync(model: nn.Module, *inputs):
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        loss = forward_backward(model, *inputs)
    return loss


def _and_then(action: Callable[[nn.Module], object]) -> ForwardBackward:
    def step(model, *inputs):
        loss = forward_backward(model, *inputs)
        action(model)
        return loss

    return step


def _summon(model: FSDP) -> None:
    with FSDP.summon_full_params(model, recurse=False, writeback=False):
        pass


def _unshard(model: nn.Module) -> None:
    model.unshard()
    model.reshard()


def _switches() -> dict[str, Switch]:
    """Return the rows; FSDP1 offloads on GPUs only, so elsewhere that row is left out."""
    bf16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    keep = {"reshard_after_forward": False}
    rows = {
        "FULL_SHARD, wrap policy": Switch(fsdp1, "fully_shard(block) for each", fsdp2),
        "SHARD_GRAD_OP": Switch(_strategy("SHARD_GRAD_OP"), "reshard_after_forward=False", partial(fsdp2, **keep)),
        "NO_SHARD": Switch(_strategy("NO_SHARD"), "DistributedDataParallel", DDP),
        "HYBRID_SHARD": Switch(_strategy("HYBRID_SHARD"), "mesh of 2 dimensions", lambda m: fsdp2(m, mesh=_mesh(2))),
        "_HYBRID_SHARD_ZERO2": Switch(
            _strategy("_HYBRID_SHARD_ZERO2"), "both of these", lambda m: fsdp2(m, mesh=_mesh(2), **keep)
        ),
        "process_group": Switch(partial(fsdp1, process_group=None), "mesh", lambda m: fsdp2(m, mesh=_mesh(1)["shard"])),
        "backward_prefetch=None": Switch(
            partial(fsdp1, backward_prefetch=None), "set_modules_to_backward_prefetch", no_backward_prefetch
        ),
        "forward_prefetch=True": Switch(
            partial(fsdp1, forward_prefetch=True), "set_modules_to_forward_prefetch", prefetch_forward
        ),
        "limit_all_gathers=True": Switch(partial(fsdp1, limit_all_gathers=True), "always on", fsdp2),
        "use_orig_params=True": Switch(partial(fsdp1, use_orig_params=True), "always so", fsdp2),
        "sync_module_states=True": Switch(
            _sync_module_states, "set_model_state_dict", lambda m: from_rank_0(_unlike_rank_0(m))
        ),
        "param_init_fn": Switch(
            lambda m: fsdp1(m.to("meta"), param_init_fn=_make_real),
            "to_empty, then initialise",
            lambda m: _make_real(fsdp2(m.to("meta")), recurse=True),
        ),
        "ignored_states": Switch(
            lambda m: fsdp1(m, ignored_states=[m.norm.weight]),
            "ignored_params",
            lambda m: fsdp2(m, ignored_params={m.norm.weight}),
        ),
        "mixed_precision": Switch(
            partial(fsdp1, mixed_precision=MixedPrecision(**bf16)),
            "mp_policy (lesson 7a)",
            partial(fsdp2, mp_policy=MixedPrecisionPolicy(**bf16)),
        ),
        "no_sync()": Switch(fsdp1, "set_requires_gradient_sync", fsdp2, _no_sync, _no_gradient_sync),
        "model.clip_grad_norm_()": Switch(
            fsdp1,
            "torch.nn.utils.clip_grad_norm_",
            fsdp2,
            _and_then(lambda m: m.clip_grad_norm_(1.0)),
            _and_then(lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0)),
        ),
        "summon_full_params()": Switch(fsdp1, "unshard(), reshard()", fsdp2, _and_then(_summon), _and_then(_unshard)),
    }
    if local_device().type == "cuda":
        rows["cpu_offload"] = Switch(
            partial(fsdp1, cpu_offload=CPUOffload(offload_params=True)),
            "offload_policy (lesson 9)",
            partial(fsdp2, offload_policy=CPUOffloadPolicy()),
        )
    return rows


def compare_switches() -> dict[str, tuple[str, Result, Result]]:
    """Run every switch and its replacement on this rank. Return {switch: (replacement, old result, new result)}."""
    return {
        name: (s.replacement, _two_steps(s.old, s.old_step), _two_steps(s.new, s.new_step))
        for name, s in _switches().items()
    }


def _two_steps(wrap: Wrap, step: ForwardBackward) -> Result:
    torch.manual_seed(0)
    model = wrap(Transformer(preset("1M", n_layers=2)).to(local_device()))
    optimizer, inputs, losses = torch.optim.SGD(model.parameters(), lr=0.1), my_batch(), []
    for _ in range(3 if isinstance(model, DDP) else 2):  # DDP rebuilds its buckets after the first step
        with record_traffic() as traffic:
            losses.append(step(model, *inputs).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses[1], dict(traffic.kinds()), traffic.sent_bytes()


_SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}


def switch_table(found: Mapping[str, tuple[str, Result, Result]]) -> str:
    """Return the comparison as text: where old and new differ, both values stand there with a bar between them."""
    lines = [f"{'FSDP1':24s} {'FSDP2':33s} loss   messages                bytes sent"]
    for name, (replacement, old, new) in found.items():
        loss = "equal" if abs(old[0] - new[0]) < 1e-3 else f"{old[0]:.4f} {new[0]:.4f}"
        kinds = [" ".join(f"{n} {_SHORT.get(kind, kind)}" for kind, n in each[1].items()) for each in (old, new)]
        sent = [f"{each[2]:,.0f}" for each in (old, new)]
        messages, n_bytes = (" | ".join(dict.fromkeys(pair)) for pair in (kinds, sent))
        lines.append(f"{name:24s} {replacement:33s} {loss:6s} {messages}   {n_bytes}")
    return "\n".join(lines)
