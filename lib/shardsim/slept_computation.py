"""Computation that takes a given time without using the CPU: a rank sleeps while a GPU would compute.

Four ranks that compute on two cores slow each other down, and none of that is the time of the simulated machine. Ranks
that sleep do not disturb each other. The model stays real and small, so its losses and messages are real. Only the time
that its modules take is made up, from a formula or a calibration.

    for i, block in enumerate(model.blocks):
        sleep_in(block, forward_s=0.02, name=f"blocks.{i}")  # before anything wraps it
    fully_shard(model)
    ...
    computations()  # what was slept, and when

[Note: where a module sleeps] A module sleeps in its `forward`, inside its hooks and its wrappers: its parameters have
arrived, and prefetches have been issued. Backward sleeps before the module's own backward, so that its gradients are
ready only afterwards, as on a GPU. To do this, the module's outputs pass through an autograd function, as copies (the
same memory under another name could not be changed in place safely). Recomputation runs forward again, so it sleeps
again. It may stop as soon as it has what backward needs, before the module's end; that is why forward sleeps at the
beginning.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from shardsim.cpu_streams import Moment, current_stream, reached_s


@dataclass(frozen=True)
class Computation:
    """One piece of work of the compute stream. Times are `time.monotonic()`, as for the network's collectives."""

    name: str
    kind: str  # forward, backward, or as given to `compute`
    started_s: float
    finished_s: float


_log: deque[Computation] = deque(maxlen=100_000)
_overslept_s = 0.0


def computations() -> list[Computation]:
    """Return what this rank has slept since the last `clear()`; with `run_ahead`, also sleeps still to come."""
    return list(_log)


def clear() -> None:
    _log.clear()


def compute(seconds: float, kind: str = "compute", name: str = "") -> None:
    """Keep the current stream busy for `seconds`: the host sleeps, or, if it runs ahead, goes on.

    A sleep ends some 0.1 ms late. The next is that much shorter (by half at most), so that delays do not add up.
    """
    global _overslept_s
    stream, start_s = current_stream(), reached_s()
    end_s = start_s + seconds - min(_overslept_s, seconds / 2)
    stream.wait_for(Moment(end_s))
    _overslept_s = max(0.0, time.monotonic() - end_s) if stream.blocks else 0.0
    _log.append(Computation(name, kind, start_s, max(start_s, end_s + _overslept_s)))


def sleep_in(
    module: nn.Module, forward_s: float, backward_s: float | None = None, *, times: float = 1.0, name: str = ""
) -> "Sleep":
    """Make `module` take `forward_s` longer in forward and `backward_s` (default: twice that) in backward.

    `times` multiplies both: 2.0 on one rank makes it a straggler. Call it before recomputation, DDP or FSDP1 wraps the
    module. Call `remove()` on the returned Sleep to end it.

    Raises ValueError if the module is wrapped or sleeps already, or a time is negative.
    """
    backward_s = 2 * forward_s if backward_s is None else backward_s
    if min(forward_s, backward_s, times) < 0:
        raise ValueError(f"a time to sleep is 0 s or more: {forward_s=}, {backward_s=}, {times=}")
    if isinstance(module.forward, partial) or any(hasattr(module, inner) for inner in _WRAPPED):
        raise ValueError(
            f"this {type(module).__name__} is wrapped already: it would sleep once where it is recomputed, or before "
            "its parameters are there; call sleep_in first, and once, then wrap"
        )
    sleep = Sleep(forward_s * times, backward_s * times, name or type(module).__name__)
    module.forward = partial(sleep.forward, module.forward)
    return sleep


_WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # torch's FSDP1; torch's CheckpointWrapper


@dataclass
class Sleep:
    """One module's sleep, until `remove()`."""

    forward_s: float
    backward_s: float
    name: str
    removed: bool = False

    def forward(self, original: Callable, *args, **kwargs):
        if self.removed:
            return original(*args, **kwargs)
        compute(self.forward_s, "forward", self.name)
        return self._before_backward(original(*args, **kwargs))

    def backward(self) -> None:
        compute(self.backward_s, "backward", self.name)

    def _before_backward(self, output):
        leaves, structure = tree_flatten(output)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not places:
            return output
        for i, tensor in zip(places, _InBackward.apply(self.backward, *(leaves[i] for i in places)), strict=True):
            leaves[i] = tensor
        return tree_unflatten(leaves, structure)

    def remove(self) -> None:
        self.removed = True


class _InBackward(torch.autograd.Function):
    """Copies `outputs`; in their backward `sleep()` is called once, as soon as all their gradients are there."""

    @staticmethod
    def forward(ctx, sleep, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.sleep = sleep
        ctx.set_materialize_grads(False)
        return tuple(t.clone() for t in outputs)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple:
        ctx.sleep()
        return (None, *gradients)
