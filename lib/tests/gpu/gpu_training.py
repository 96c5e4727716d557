"""What the programs for the stand-in GPU share: the model, a training loop, and parts of programs."""

from contextlib import nullcontext, suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW
from training import samples, uneven

from shardlab.recompute import checkpoint

STEPS, LR, N_BLOCKS = 2, 1e-2, 3
GPU = "gpu"


class _BreaksOff(Exception):
    pass


def model_on_gpu(dtype: torch.dtype = torch.float64) -> nn.Module:
    return uneven(n_blocks=N_BLOCKS, dtype=dtype).to(GPU)


def train(
    model, optimizer, *, micro_batches=1, unsynced=None, breaks=None, before_step=lambda: None, on_host=False
) -> list:
    """Return the losses. `unsynced(last)` is around each micro-batch; the backward of `breaks` breaks off."""
    unsynced = unsynced or (lambda last: nullcontext())
    batches = [samples(step, dist.get_rank(), dist.get_world_size()) for step in range(STEPS)]
    if not on_host:
        # Now, since such a copy makes the host wait for the device, and would hide that others don't
        batches = [[t.to(GPU) for t in batch] for batch in batches]
    losses = []
    for tokens, targets in batches:
        if breaks is not None and losses:
            _break_off(model, breaks, tokens, targets)
            optimizer.zero_grad()
            model.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=GPU)
        for i, micro in enumerate(zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True)):
            with unsynced(i == micro_batches - 1):
                loss = model(*micro) / micro_batches
                loss.backward()
            total += loss.detach().double()
        before_step()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total / dist.get_world_size())
    return [loss.item() for loss in losses]


class _RaisesInBackward(torch.autograd.Function):
    """Breaks a backward off. See `stand_in_gpu` for why no hook does it."""

    @staticmethod
    def forward(ctx, t):
        return t.view_as(t)

    @staticmethod
    def backward(ctx, gradient):
        raise _BreaksOff


def _break_off(model, module: nn.Module, tokens, targets) -> None:
    handle = module.register_forward_hook(lambda m, args, out: _RaisesInBackward.apply(out))
    with suppress(_BreaksOff):
        model(tokens, targets).backward()
        raise AssertionError("this backward was to break off")
    handle.remove()


class Recomputed(nn.Module):
    """A unit whose call is checkpointed from outside."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x):
        return checkpoint(self.unit, x, use_reentrant=False)


class StepsInBackward:
    """An AdamW for each parameter, which steps inside backward when the gradient is there."""

    def __init__(self, params, lr: float) -> None:
        for p in params:
            p.register_post_accumulate_grad_hook(partial(self._step, AdamW([p], lr=lr)))

    def _step(self, optimizer: AdamW, p: nn.Parameter) -> None:
        optimizer.step()
        p.grad = None

    def step(self) -> None:
        pass

    zero_grad = step
