"""Dynamic loss scaling: scale float16 gradients up, so that they do not vanish, and divide them again before the step.

Vocabulary. The loss is multiplied by the *scale*; by the chain rule, so is every gradient. A gradient *overflows* when
it is inf or nan: then the scale was too large, the step is skipped, and the scale *backs off*. After `growth_interval`
steps without an overflow the scale *grows*. So the scale stays as large as float16 allows.

[Note: an overflow on one rank counts on all ranks]
If gradients are sharded, a rank sees only its own shard, so an overflow may be on one rank only. If only that rank
skipped its step and lowered its scale, the ranks would train different models from then on, without any error. So the
ranks take the MAX of their flags: either all skip or none. No switch turns this off. It would save four bytes a step
under DDP, where every rank has the same gradients, and silently break everything else. Ranks that do not share a model
pass a process group of their own.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2; torch.amp.GradScaler and
torch.distributed.fsdp.sharded_grad_scaler.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.backward_hooks import refuse_sparse
from shardlab.shard_groups import local


class GradScaler:
    """Loss scaler like torch.amp.GradScaler, for ranks that share a model.

        scaler.scale(loss).backward()
        scaler.step(optimizer)  # unscales the gradients first; skips the step if any rank's gradients overflowed
        scaler.update()

    To clip gradients, call `scaler.unscale_(optimizer)` first. After an overflow, `overflowed` maps each rank to the
    names of its parameters (numbers, unless the optimizer was given `model.named_parameters()`).

    `process_group` holds the ranks that share the model (default: all ranks). They send their flag from `device`
    (default: the parameters' device). If the factors are powers of two, the scales equal torch's to the bit.

    Sends: an all_reduce of 4 bytes a step; after an overflow, the names too.

    Raises FloatingPointError in `update` after an overflow at `min_scale` or below, which no scale can cure. As in
    torch: ValueError in `unscale_` if a gradient is itself float16, and RuntimeError in `step` for a closure.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 1.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._device, self._group, self._enabled, self._min_scale = device, process_group, enabled, min_scale
        self._scale, self._growth_factor, self._backoff_factor = init_scale, growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker = growth_interval, 0
        self._found: dict[int, dict] = {}  # since the last update: optimizer's id -> its part of `overflowed`
        self._stepped: set[int] = set()
        self.overflowed: dict[int, list[str]] = {}  # in the last step: rank -> names of parameters

    def scale(self, outputs):
        """Return a loss, or a list or tuple of losses, times the scale; each keeps its dtype."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(output) for output in outputs)

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place."""
        if not self._enabled:
            return
        if id(optimizer) in self._found:
            raise RuntimeError("unscale_() has been called already, or comes after step(): call update() in between")
        gradients = _gradients(optimizer)
        _refuse_float16(gradients)
        self._look_for_overflow(optimizer, gradients)
        for gradient in gradients.values():
            gradient.mul_(1 / self._scale)

    def step(self, optimizer: torch.optim.Optimizer, *args, **kwargs):
        """Call `optimizer.step()`, unless one of its gradients overflowed on any rank."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not supported: its gradients would come too late to be unscaled")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has been called already since the last update()")
        self._stepped.add(id(optimizer))
        if id(optimizer) not in self._found:
            holds = hasattr(optimizer, "held_gradients")
            if not holds and getattr(optimizer, "_step_supports_amp_scaling", False):  # MasterWeights, or a fused one
                self._look_for_overflow(optimizer, _gradients(optimizer))
                optimizer.grad_scale = torch.tensor(self._scale, device=_parameter_device(optimizer))
            else:
                self.unscale_(optimizer)
        try:
            if not self._found[id(optimizer)]:
                return optimizer.step(*args, **kwargs)
        finally:
            vars(optimizer).pop("grad_scale", None)
        if hasattr(optimizer, "held_gradients"):  # model.zero_grad() does not reach these gradients
            optimizer.zero_grad()
        return None

    def update(self, new_scale: float | None = None) -> None:
        """Back off, grow or keep the scale. Call it once an iteration, after all steps."""
        if not self._enabled:
            return
        if not self._found and new_scale is None:
            raise RuntimeError("update() has nothing to go by: call step() or unscale_() before")
        if new_scale is not None:
            self._scale = float(new_scale)
        elif any(self._found.values()):
            self._back_off()
        else:
            self._grow()
        self._found, self._stepped = {}, set()

    def _back_off(self) -> None:
        if self._scale <= self._min_scale:
            raise FloatingPointError(self._incurable())
        self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0

    def _grow(self) -> None:
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            larger = self._scale * self._growth_factor
            self._scale = larger if larger <= torch.finfo(torch.float32).max else self._scale
            self._growth_tracker = 0

    def _look_for_overflow(self, optimizer, gradients: dict[str, Tensor]) -> None:
        """Find overflows on all ranks, also those without gradients. See the note on top about overflows."""
        device = _parameter_device(optimizer)
        bad = [torch.isfinite(g).all().logical_not() for g in gradients.values()]
        flags = torch.stack(bad).tolist() if bad else []  # wait for the GPU once, not for each gradient
        names = [name for name, flag in zip(gradients, flags, strict=True) if flag]
        if not self._found:
            self.overflowed = {}
        self._found[id(optimizer)] = by_rank = self._of_all_ranks(names, self._device or device)
        for rank, found in by_rank.items():
            self.overflowed[rank] = self.overflowed.get(rank, []) + found

    def _of_all_ranks(self, names: list[str], device) -> dict[int, list[str]]:
        if not dist.is_initialized():
            return {0: names} if names else {}
        flag = torch.tensor(float(bool(names)), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        if not flag.item():
            return {}
        everyone: list = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, names, group=self._group)
        ranks = dist.get_process_group_ranks(self._group)
        return {rank: found for rank, found in zip(ranks, everyone, strict=True) if found}

    def _incurable(self) -> str:
        ranks, names = sorted(self.overflowed), dict.fromkeys(sum(self.overflowed.values(), []))
        who = f"rank {ranks[0]} alone" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return (
            f"fp16 overflow on {who}, in {', '.join([*names][:5])}{more}, at a loss scale of only {self._scale:g}: no "
            "scale can cure it. Look for inf or nan in the data and in the forward, or train in bfloat16, which has "
            "the range of float32"
        )

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict:
        """Return the state under torch's keys, so that either scaler can load it."""
        if not self._enabled:
            return {}
        names = ("growth_factor", "backoff_factor", "growth_interval", "growth_tracker")
        state = {name: getattr(self, f"_{name}") for name in names}
        return {"scale": self._scale, "_growth_tracker": state.pop("growth_tracker")} | state

    def load_state_dict(self, state_dict: dict) -> None:
        if self._enabled:
            for name, value in state_dict.items():
                setattr(self, f"_{name.lstrip('_')}", value)


def _gradients(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return this rank's gradients by name; for a DTensor, the local shard.

    Some optimizers take gradients out of `p.grad` and hold them themselves.
    """
    held = optimizer.held_gradients() if hasattr(optimizer, "held_gradients") else None
    found = {}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            name = group["param_names"][i] if "param_names" in group else f"parameter {i} of group {g}"
            gradient = p.grad if held is None else held.get(p)
            if gradient is not None:
                refuse_sparse(gradient, name)
                found[name] = local(gradient)
    return found


def _refuse_float16(gradients: dict[str, Tensor]) -> None:
    for name, gradient in gradients.items():
        if gradient.dtype == torch.float16:
            rank = dist.get_rank() if dist.is_initialized() else 0
            raise ValueError(
                f"rank {rank}: the gradient of {name} is float16: divided by the scale, it might vanish again. Keep "
                "the weights in float32 (fully_shard's param_dtype), or wrap the optimizer in MasterWeights, whose "
                "step() unscales in float32, and leave out unscale_()"
            )


def _parameter_device(optimizer: torch.optim.Optimizer) -> torch.device:
    return next(p.device for group in optimizer.param_groups for p in group["params"])
