"""Training with 16-bit weights: what is lost, and two ways to keep it.

(FSDP's mixed precision, which computes in 16 bits from weights that it stores in 32, is in `fsdp`.)

[Note: two things that 16 bits lose]
16 bits lose range and resolution. A format has a largest number, a smallest normal number, and an eps, which is the
distance from 1 to the next number:

              largest                     smallest normal    eps
    float32   (2 - 2**-23) * 2**127       2**-126            2**-23
    bfloat16  (2 - 2**-7) * 2**127        2**-126            2**-7
    float16   (2 - 2**-10) * 2**15        2**-14             2**-10

bfloat16 has float32's range, so it needs no loss scaling. float16 ends at 65504, and values below 2**-25 become zero.
Many gradients are that small: see `loss_scaling`.

Both lack resolution. A bfloat16 weight of 1 has the neighbours 1 - 2**-8 and 1 + 2**-7. An update of less than half
that distance is rounded away in every step, and training stalls, however many steps push the same way. There are two
cures. `MasterWeights` keeps the small updates in a float32 copy. `StochasticRounding` rounds to the far neighbour with
exactly the probability that makes the result right on average.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.1; Gupta et al. 2015, "Deep Learning with
Limited Numerical Precision", section 3.1; Rajbhandari et al. 2020, "ZeRO", section 3.1, for the 16 bytes a parameter.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardlab.backward_hooks import refuse_sparse
from shardlab.shard_groups import hyperparameters, local


class _StepsInFloat32(torch.optim.Optimizer):
    """Base class: passes each parameter in turn, as float32, to an inner optimizer of `optimizer_class`.

    From outside it is a torch optimizer of the 16-bit parameters and their gradients; learning rate schedulers work on
    its groups. Its state is float32. If 16-bit gradients come from a scaled loss, a GradScaler lets `step` unscale them
    in float32 (torch's protocol for fused optimizers: `grad_scale`, `found_inf`).
    """

    _step_supports_amp_scaling = True

    def __init__(self, params, optimizer_class: type[torch.optim.Optimizer], **options) -> None:
        self._one, self._options = optimizer_class([torch.zeros(1, 1)], **options), options
        super().__init__(params, self._one.defaults)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        if not getattr(self, "found_inf", False):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._step_one(p, group)
        return loss

    def _step_one(self, p: nn.Parameter, group: dict) -> None:
        refuse_sparse(p.grad, f"a parameter of shape {list(p.shape)}")
        weight, gradient, scale = self._as_float32(p), p.grad, getattr(self, "grad_scale", None)
        weight.grad = gradient.to(weight.dtype) if scale is None else gradient.to(weight.dtype) / scale
        self.state[p] = self._update(weight, group, self.state[p])
        weight.grad, p.grad = None, gradient  # in this order: a float32 parameter is its own `weight`
        if weight is not p:
            self._store(p, weight)

    def _update(self, weight: nn.Parameter, group: dict, state: dict) -> dict:
        """Step `weight` once and return its new state.

        One inner optimizer serves all weights and keeps none of them. One for each would keep its float32 copy alive:
        torch's optimizers are freed late, as they are in reference cycles.
        """
        self._one.__init__([weight], **self._options)
        self._one.param_groups[0].update(hyperparameters(group))
        self._one.state[weight].update(state)
        self._one.step()
        state = self._one.state.pop(weight)
        self._one.param_groups.clear()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state as it was saved; torch would round it to the parameter's dtype."""
        super().load_state_dict(state_dict)
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(numbers, params, strict=True):
            if i in state_dict["state"]:
                self.state[p] = {k: _copy_on_device_of(p, k, v) for k, v in state_dict["state"][i].items()}


class MasterWeights(_StepsInFloat32):
    """Any torch optimizer, for 16-bit parameters: each has a float32 master that takes the updates.

        optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)

    The master is made in the first step. If other code changes a weight later (e.g. loads a checkpoint), the master
    takes the weight's new value.

    Keeps: with Adam 16 bytes a parameter: weight 2, gradient 2, master 4, moments 8. During a step also float32 copies
    of the largest parameter and its gradient.
    """

    def _as_float32(self, p: nn.Parameter) -> nn.Parameter:
        if p.element_size() >= 4:
            return p
        if "master" not in self.state[p]:
            return nn.Parameter(p.detach().float())
        master = self.state[p]["master"]
        return nn.Parameter(master.copy_(torch.where(master.to(p.dtype) == p, master, p)))

    def _store(self, p: nn.Parameter, weight: Tensor) -> None:
        p.copy_(weight)
        self.state[p]["master"] = weight.detach()


class StochasticRounding(_StepsInFloat32):
    """Any torch optimizer, for bfloat16 parameters without masters: each step rounds at random, right on average.

        optimizer = StochasticRounding(model.parameters(), torch.optim.AdamW, lr=1e-3, seed=0)

    Ranks that hold the same weights (replicas) must round alike, or they drift apart: all draw from `seed`. Ranks that
    hold different shards of a DTensor draw different numbers. The random sequence starts again when training resumes.

    Keeps: with Adam 12 bytes a parameter: weight 2, gradient 2, moments 8. During a step also a few float32 copies of
    the largest parameter.

    Raises TypeError in the step of a float16 parameter.
    """

    def __init__(self, params, optimizer_class: type[torch.optim.Optimizer], *, seed: int = 0, **options) -> None:
        self.seed, self._generators = seed, {}
        super().__init__(params, optimizer_class, **options)

    def _as_float32(self, p: nn.Parameter) -> nn.Parameter:
        return p if p.element_size() >= 4 else nn.Parameter(p.detach().float())

    def _store(self, p: nn.Parameter, weight: Tensor) -> None:
        stochastic_round_(local(p), local(weight), self._generator(p))

    def _generator(self, p: nn.Parameter) -> torch.Generator:
        key = p.device, _shard_number(p)
        if key not in self._generators:
            self._generators[key] = torch.Generator(p.device).manual_seed(self.seed * 1_000_003 + key[1])
        return self._generators[key]


@torch.no_grad()
def stochastic_round_(target: Tensor, value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Round `value` at random to one of its two neighbours, into `target`; E[target] = value. From float32 to bfloat16.

    A bfloat16 is the upper half of a float32's bits. A random 16-bit number, added to the lower half, carries into the
    upper half with probability lower / 2**16: the share of the way from one neighbour to the next. A value whose lower
    half is 0 stays as it is, and so do inf and nan. Beyond the largest bfloat16, the next number is inf.

    Raises TypeError for other dtypes.
    """
    if (target.dtype, value.dtype) != (torch.bfloat16, torch.float32):
        raise TypeError(f"stochastic_round_ rounds float32 to bfloat16, not {value.dtype} to {target.dtype}")
    noise = torch.randint(1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    rounded = noise.add_(value.view(torch.int32)).bitwise_and_(-1 << 16).view(torch.float32)
    return target.copy_(torch.where(value.isfinite(), rounded, value))


def _shard_number(p: nn.Parameter) -> int:
    """Number of the parameter's shard on this rank; replicas of a shard have the same number."""
    number = 0
    if isinstance(p, DTensor):
        for axis, placement in enumerate(p.placements):
            if placement.is_shard():
                number = number * p.device_mesh.size(axis) + p.device_mesh.get_local_rank(axis)
    return number


def _copy_on_device_of(p: nn.Parameter, name: str, value):
    """Copy a state to p's device; a step count stays on its own (Adam's on the CPU, as in torch)."""
    if not isinstance(value, Tensor):
        return value
    return value.clone() if name == "step" else value.to(p.device, copy=True)
