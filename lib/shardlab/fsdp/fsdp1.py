"""The older interface, FSDP1: one wrapper around the model, a strategy by name, a policy that picks the units.

The same units and the same schedule, with the flat layout. What the strategies are:

    FULL_SHARD          free whole parameters after forward                         ZeRO-3
    SHARD_GRAD_OP       keep them until backward is through                         ZeRO-2, as far as memory goes
    NO_SHARD            a shard group of one rank, all others replicas: all_reduce  DDP
    HYBRID_SHARD        FULL_SHARD inside of a group, all_reduce between groups
    _HYBRID_SHARD_ZERO2 SHARD_GRAD_OP inside of a group

Source: Zhao et al. 2023, section 3.2; torch.distributed.fsdp.FullyShardedDataParallel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
)

from shardlab.bucketed_backward import broadcast_tensors
from shardlab.fsdp.api import make_unit, schedule_of
from shardlab.fsdp.flat_parameter import FlatParameter, OrigParams
from shardlab.fsdp.ranks import Ranks, current_device, default_device_type, ranks_of
from shardlab.grad_norm import clip_sharded_, common_dtype
from shardlab.parameter_shards import shard_groups
from shardlab.precision import cast_buffers

HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
KEEPS_WHOLE_PARAMETERS = (
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy.NO_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
)


class FullyShardedDataParallel(nn.Module):
    """Shard `module`, in units that `auto_wrap_policy` picks and one for the rest; `module` is changed in place.

    Hybrid strategies take a 2-D `device_mesh` (replicate, shard) or `process_group=(shard group, replicate group)`.
    `state_dict()` holds this rank's flat parameters; `flat_intervals(model)` says what of which parameter they are.
    Between a forward and its backward `parameters()` are whole ones, torch's the shards: an optimizer that is built
    there raises RuntimeError in its step.

    Sends and keeps: as `fully_shard`; NO_SHARD sends one all_reduce a unit, 2 (N-1)/N of its bytes.

    Raises ValueError as `fully_shard` does; for a hybrid strategy without its two groups; if a policy has options for a
    unit; for what mixed precision leaves out in torch, as BatchNorm, and for `keep_low_precision_grads`.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Callable | None = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        *,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        device_id: int | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        self.backward_prefetch, self.forward_prefetch = backward_prefetch, forward_prefetch
        self.limit_all_gathers = limit_all_gathers
        self._keeps_whole_parameters = strategy in KEEPS_WHOLE_PARAMETERS
        self._ranks = _ranks(strategy, process_group, device_mesh, _device(module, device_id))
        _materialise(module, param_init_fn, self._ranks.device)
        if sync_module_states:
            _broadcast(module, self._ranks)
        mixed_precision = mixed_precision or MixedPrecision()
        _can_be_followed(mixed_precision, module, auto_wrap_policy)
        options = {
            "layout": OrigParams if use_orig_params else FlatParameter,
            "reshard_after_forward": False if self._keeps_whole_parameters else None,
            "on_cpu": cpu_offload is not None and cpu_offload.offload_params,
        }
        if mixed_precision.buffer_dtype is not None:
            cast_buffers(module, mixed_precision.buffer_dtype)
        for inner in chosen_units(module, auto_wrap_policy):
            policy = _policy(mixed_precision, mixed_precision.cast_forward_inputs)
            make_unit([inner], self._ranks, mp_policy=policy, **options)
        policy = _policy(mixed_precision, mixed_precision.cast_root_forward_inputs)
        self._root_unit = make_unit([module], self._ranks, mp_policy=policy, **options)
        self._fsdp_wrapped_module = module

    @property
    def module(self) -> nn.Module:
        return self._fsdp_wrapped_module

    def __getattr__(self, name: str):
        """Fall back to the wrapped model's attributes."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self._fsdp_wrapped_module, name)

    def forward(self, *args, **kwargs):
        schedule = schedule_of(self._root_unit)
        if schedule.root is self._root_unit:
            schedule.backward_prefetch, schedule.forward_prefetch = self.backward_prefetch, self.forward_prefetch
            schedule.limiter.limited = self.limit_all_gathers
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside keep whole gradients and send nothing; the first one outside reduces the sum.

        Keeps: a whole gradient; and whole parameters too, if the strategy does so after forward.
        """
        units = {m._unit for m in self.module.modules() if hasattr(m, "_unit")}
        before = {u: (u.requires_gradient_sync, u.reshard_after_backward) for u in units}
        self.module.set_requires_gradient_sync(False)
        if self._keeps_whole_parameters:
            self.module.set_reshard_after_backward(False)
        try:
            yield
        finally:
            for unit, (sync, reshard) in before.items():
                unit.requires_gradient_sync, unit.reshard_after_backward = sync, reshard

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the shards' gradients, also between a forward and its backward, when modules hold whole parameters."""
        super().zero_grad(set_to_none)
        nn.ParameterList(self._sharded_params()).zero_grad(set_to_none)

    def _sharded_params(self) -> list[nn.Parameter]:
        units = {m._unit: None for m in self.module.modules() if hasattr(m, "_unit")}
        return [p for unit in units for layout in unit.layouts for p in layout.sharded_params]

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float | str = 2.0) -> Tensor:
        """Scale all gradients so that their norm over all ranks is at most `max_norm`; the norm before, on every rank.

        It is computed in float32 at least, and rounded to the parameters' dtype at the end.
        Sends: one all_reduce of one element for each group that parameters are sharded over; NO_SHARD sends none.
        """
        params = self._sharded_params()
        gradients = [(shard_groups(p), p.grad) for p in params]
        return clip_sharded_(gradients, max_norm, norm_type, common_dtype(params), self._ranks.device)


def chosen_units(root: nn.Module, policy: Callable | None) -> list[nn.Module]:
    """Return the modules below root that one of torch's wrap policies picks, inner ones first."""
    if policy is None:
        return []
    if hasattr(policy, "_run_policy"):  # ModuleWrapPolicy, CustomPolicy
        chosen = policy._run_policy(root, ignored_modules=set(), root_kwargs={})
        if any(chosen.values()):
            raise ValueError(
                f"rank {dist.get_rank()}: options of its own for a unit: call FullyShardedDataParallel on it"
            )
        return [m for m in reversed(chosen) if m is not root]
    chosen_modules: list[nn.Module] = []

    def walk(module: nn.Module) -> int:
        """Number of elements below that are in chosen units."""
        numel = sum(p.numel() for p in module.parameters())
        if not policy(module=module, recurse=True, nonwrapped_numel=numel):
            return 0
        inside = sum(walk(child) for child in module.children())
        if module is root or not policy(module=module, recurse=False, nonwrapped_numel=numel - inside):
            return inside
        chosen_modules.append(module)
        return numel

    walk(root)
    return chosen_modules


def _ranks(strategy, process_group, mesh: DeviceMesh | None, device: torch.device) -> Ranks:
    if strategy in HYBRID:
        if mesh is not None and mesh.ndim == 2:
            return ranks_of(mesh)
        if isinstance(process_group, tuple):
            shard_group, replicate_group = process_group
            return Ranks(shard_group, replicate_group, device)
        raise ValueError(
            f"rank {dist.get_rank()}: {strategy.name} shards inside of one group and replicates between groups: pass a "
            "2-D device_mesh (replicate, shard), or process_group=(shard group, replicate group)"
        )
    group = mesh.get_group() if mesh is not None else process_group or dist.group.WORLD
    return Ranks(None, group, device) if strategy is ShardingStrategy.NO_SHARD else Ranks(group, None, device)


def _device(module: nn.Module, device_id: int | torch.device | None) -> torch.device:
    if isinstance(device_id, int):
        return torch.device("cuda", device_id)
    if device_id is not None:
        return torch.device(device_id)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    return current_device(default_device_type()) if device.type == "meta" else device


def _can_be_followed(mixed_precision: MixedPrecision, module: nn.Module, policy: Callable | None) -> None:
    if mixed_precision.keep_low_precision_grads:
        raise ValueError(
            f"rank {dist.get_rank()}: keep_low_precision_grads=True is not supported: here gradients have the dtype of "
            "their parameters"
        )
    dtypes = mixed_precision.param_dtype, mixed_precision.reduce_dtype, mixed_precision.buffer_dtype
    if policy is None or not any(dtypes):
        return
    for name, m in module.named_modules():
        if isinstance(m, tuple(mixed_precision._module_classes_to_ignore)):
            raise ValueError(
                f"rank {dist.get_rank()}: {name} is a {type(m).__name__}, which torch leaves out of mixed precision, "
                "in a unit of its own. Here nothing is left out: pass MixedPrecision(_module_classes_to_ignore=()) if "
                "it may be treated as the others are"
            )


def _materialise(module: nn.Module, init: Callable[[nn.Module], None] | None, device: torch.device) -> None:
    """Run initialisers before flat parameters hide the modules' own from them."""
    for m in module.modules():
        if any(t.is_meta for t in [*m.parameters(recurse=False), *m.buffers(recurse=False)]):
            if init is not None:
                init(m)
            else:
                m.to_empty(device=device, recurse=False)
                m.reset_parameters()


def _broadcast(module: nn.Module, ranks: Ranks) -> None:
    """Send the first rank's parameters and buffers to all ranks: along its row first, then down the columns."""
    tensors = [*module.parameters(), *module.buffers()]
    for t in tensors:
        t.data = t.data.to(ranks.device)
    for group in ranks.groups:
        broadcast_tensors(tensors, group)


def _policy(mixed_precision: MixedPrecision, cast_inputs: bool) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy(
        mixed_precision.param_dtype, mixed_precision.reduce_dtype, cast_forward_inputs=cast_inputs
    )
