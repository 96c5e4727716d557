"""`fully_shard`, and the methods that it adds to a module. Source: torch.distributed.fsdp.fully_shard."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from shardlab.check_rank_consistency import check_same_values
from shardlab.freed_or_replaced_parameters import forget_originals, ignored, refuse_later_ones
from shardlab.fsdp import validate
from shardlab.fsdp.param import PerParameter, params_of
from shardlab.fsdp.schedule import Schedule
from shardlab.fsdp.unit import Layout, Unit
from shardlab.nested_tensors import modules_of, move_to
from shardlab.shard_groups import ranks_of


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008  frozen, as torch's
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008
    ignored_params: set[nn.Parameter] | None = None,
    layout: type[Layout] = PerParameter,
) -> nn.Module | list[nn.Module]:
    """Make one unit of all parameters of `module` that are in no unit yet. Call it on inner modules first.

    The module's class becomes a subclass of FSDPModule and of its old class. Modules in a list share a unit: use this
    for a tied weight. `mesh` is 1-D, or 2-D as (replicate, shard). `reshard_after_forward=None` means True, but False
    for the root. `layout` is PerParameter or FlatParameter.

    Sends a step: 3 (N-1)/N of the unit's padded bytes a rank, or 2 (N-1)/N if it does not reshard after forward. This
    call sends 16 bytes a group, to compare parameters. Keeps: 1/N of parameters and gradients between steps.

    Raises ValueError if a module has no forward or is in a unit already; if a parameter is tied to one of another unit,
    is a DTensor, is a scalar, has hooks, is not contiguous (FlatParameter allows that), or differs between ranks; or if
    trained parameters have different dtypes.
    """
    if not isinstance(reshard_after_forward, bool | None):
        raise ValueError(f"rank {dist.get_rank()}: reshard_after_forward is True, False or None here, not a number")
    modules = [module] if isinstance(module, nn.Module) else list(module)
    ranks, on_cpu = ranks_of(mesh), isinstance(offload_policy, CPUOffloadPolicy)
    for m in modules:
        validate.check_unit(m)
    managed = [pair for m in modules for pair in modules_of(m, FSDPModule, layout.children_first)]
    ignored.update(dict.fromkeys(ignored_params or ()))
    params = params_of(managed, ignored_params or set(), unit_module=modules[-1])
    validate.check_parameters(managed, params)
    buffers = [b for _, m in managed for b in m._buffers.values() if b is not None]
    move_to(ranks.device, [*(p.original for p in params), *buffers])
    check_same_values({p.name: p.original for p in params}, ranks.groups, ranks.device)
    layouts = [layout(group, ranks, mp_policy.param_dtype, on_cpu) for group in layout.groups(params)]
    unit = Unit(modules, [m for _, m in managed], layouts, ranks, mp_policy, reshard_after_forward)
    forget_originals(params)
    for m in modules:
        _attach(m, unit)
    for name, m in managed:
        if any(m is place for p in params for place, _ in p.places):
            _guard(name, m, unit)
    return module


class FSDPModule:
    """Methods of a module that is a unit. Settings also apply to the units inside it, unless recurse=False."""

    def __new__(cls, *args, **kwargs):
        """Return an object of the original class: containers call this for a slice of themselves, which is no unit."""
        return cls.__mro__[2](*args, **kwargs)

    def __getstate__(self):
        rank = dist.get_rank()
        raise RuntimeError(f"rank {rank}: a sharded module can't be copied: copy it before, or go by its state_dict()")

    def unshard(self, async_op: bool = False) -> "UnshardHandle | None":
        """Gather this unit's parameters, but not those of units inside it. `async_op`: return a handle to wait for."""
        unit = self._fsdp_unit
        unit.gather_stream.wait_stream(torch.get_device_module(unit.ranks.device).current_stream())  # after a step
        unit.unshard()
        return UnshardHandle(unit.wait_for_unshard) if async_op else unit.wait_for_unshard()

    def reshard(self) -> None:
        self._fsdp_unit.reshard()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Set whether backward reduces. False adds up whole gradients: for all micro-batches but the last."""
        self._set("requires_gradient_sync", requires_gradient_sync, recurse)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Set whether backward all_reduces shards on a 2-D mesh. False adds up reduce_scattered shards instead."""
        self._set("requires_all_reduce", requires_all_reduce, recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        self._set("reshard_after_forward", reshard_after_forward, recurse)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Set whether backward reshards. False keeps whole parameters: the next micro-batch saves an all_gather."""
        self._set("reshard_after_backward", reshard_after_backward, recurse)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Set whether backward waits for its gradients. After a backward with False, one with True must follow."""
        schedule_of(self._fsdp_unit).is_last_backward = is_last_backward

    def set_modules_to_forward_prefetch(self, modules: list["FSDPModule"]) -> None:
        """Begin to gather `modules` in this unit's pre_forward: on a CPU, the only way to overlap in forward."""
        self._fsdp_unit.forward_prefetch = [m._fsdp_unit for m in modules]

    def set_modules_to_backward_prefetch(self, modules: list["FSDPModule"]) -> None:
        """Begin to gather `modules` in this unit's pre_backward, instead of the unit that ran before it in forward."""
        self._fsdp_unit.backward_prefetch = [m._fsdp_unit for m in modules]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, also those that were not reduced. Those are not the optimizer's: its zero_grad keeps them."""
        for m in (m for m in self.modules() if isinstance(m, FSDPModule)):
            m._fsdp_unit.forget_gradients()
        super().zero_grad(set_to_none)

    def _set(self, name: str, value: bool, recurse: bool) -> None:
        for m in self.modules() if recurse else [self]:
            if isinstance(m, FSDPModule):
                setattr(m._fsdp_unit, name, value)

    def _apply(self, *args, **kwargs):
        """Change the shards: to(), half() and to_empty() call this."""
        self.reshard()
        super()._apply(*args, **kwargs)
        self._fsdp_unit.refresh()
        return self


class UnshardHandle(NamedTuple):
    wait: Callable[[], None]  # returns when the unit's modules hold whole parameters


def schedule_of(unit: Unit) -> Schedule:
    """Return the unit's schedule. The first unit that asks for it is the root; all units below share its schedule.

    Raises RuntimeError if a unit has been a root before, or a parameter came later or is on the meta device.
    """
    if unit.schedule is None:
        units: dict[Unit, None] = {}
        tops = sorted(unit.modules, key=lambda m: sum(1 for _ in m.modules()))  # the last may contain the others
        names = {m: name for top in tops for name, m in top.named_modules()}
        for m, name in names.items():
            if isinstance(m, FSDPModule) and m._fsdp_unit not in units:
                validate.can_join_schedule(m._fsdp_unit, name)
                m._fsdp_unit.enter(names)
                units[m._fsdp_unit] = None
        refuse_later_ones(names, [layout for u in units for layout in u.layouts])
        Schedule(unit, list(units))
    return unit.schedule


_classes: dict[type, type] = {}


def _attach(module: nn.Module, unit: Unit) -> None:
    cls = type(module)
    if cls not in _classes:
        _classes[cls] = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {})
    module.__class__, module._fsdp_unit = _classes[cls], unit
    eager = torch.compiler.disable  # torch.compile ends its graph before a hook
    before = eager(lambda m, args, kwargs: schedule_of(unit).pre_forward(unit, m, args, kwargs))
    module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    module.register_forward_hook(eager(lambda m, args, output: schedule_of(unit).post_forward(unit, m, output)))


def _guard(name: str, module: nn.Module, unit: Unit) -> None:
    """Guard a module that has parameters of the unit: calls need them unsharded, state dicts need them sharded."""
    module._fsdp_unit_around = unit
    if module not in unit.modules:
        module.register_forward_pre_hook(lambda *_: validate.is_unsharded(unit, name))
    module.register_state_dict_pre_hook(lambda *_: unit.reshard())
    module.register_load_state_dict_pre_hook(lambda *_: unit.reshard())
    module.register_load_state_dict_post_hook(lambda *_: unit.refresh())
