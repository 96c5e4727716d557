"""ZeRO stage 2: gradients go to their owners while backward computes, and whole gradients never pile up.

Stage 1 lets backward make all gradients and reduces them in `step`: psi bytes at its peak. Here a bucket's gradients
leave as soon as it is full, in a reduce_scatter that runs beside the rest of backward, and what stays is the owner's
slice of the mean. Of whole gradients there are at any moment: those of one bucket on its way and of one that fills.

Source: Rajbhandari et al. 2020, "ZeRO" (SC20), sections 5.2 and 7.2.1; fairscale's ShardedDataParallel.
"""

from contextlib import contextmanager

import torch
from torch import nn

from shardlab.ddp import broadcast_tensors
from shardlab.nested_tensors import before_backward, with_gradient
from shardlab.zero.bucket import Bucket
from shardlab.zero.stage1 import ZeroRedundancyOptimizer


class ShardedDataParallel(nn.Module):
    """Run `module`; reduce each bucket of `optimizer`, built over the module's parameters, during backward.

    Then `p.grad` is None, and the optimizer's shards hold the mean, until `optimizer.step()` uses it up. Another
    backward before that adds to it. Clip by `optimizer.clip_grad_norm_`.

    Sends: with psi the optimizer's `padded_bytes`, psi (N-1)/N a backward, in one reduce_scatter a bucket; none
    under `no_sync`. `optimizer.step` then only gathers: psi (N-1)/N. Rank 0's buffers, with `broadcast_buffers`, before
    the forwards before which DDP sends them.
    Keeps: psi/N of gradients; during backward, two buckets more, or one and those that other groups and dtypes have
    begun to fill; under `no_sync`, whole gradients, psi, until a backward outside has sent them.

    Raises RuntimeError if the optimizer and the module do not train the same parameters; in backward, if one of them
    got no gradient.
    """

    def __init__(
        self, module: nn.Module, optimizer: ZeroRedundancyOptimizer, *, broadcast_buffers: bool = True
    ) -> None:
        super().__init__()
        self.module, self.optimizer, self.broadcast_buffers = module, optimizer, broadcast_buffers
        self.group = optimizer.process_group
        self._buckets: list[Bucket] = []  # in the order in which backward fills them
        self._hooked: set[nn.Parameter] = set()
        self._sync = True  # whether the next forward asks its backward to communicate
        self._armed = False  # whether the next backward communicates
        self._after_training = True  # whether the last forward asked for that: see `ddp`
        frozen = [p for p in module.parameters() if not p.requires_grad]  # the others got rank 0's in the optimizer
        broadcast_tensors([*frozen, *module.buffers()], self.group)
        self._adopt_buckets()

    def forward(self, *args, **kwargs):
        trains = self._sync and torch.is_grad_enabled()
        if trains:
            self._prepare_backward()
        if self.broadcast_buffers and self._after_training:
            broadcast_tensors(self.module.buffers(), self.group)
        output = self.module(*args, **kwargs)
        self._after_training = trains
        for t in with_gradient(output) if self._armed else []:
            before_backward(t, self._backward_begins)
        return output

    @contextmanager
    def no_sync(self):
        """Gradients of the forwards inside stay local and add up; the first backward outside sends the sum."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def _adopt_buckets(self) -> None:
        """Of the optimizer's, which may have got more by add_param_group: order them, and hook their parameters."""
        names = {p: name for name, p in self.module.named_parameters()}
        self._check_same_parameters(names)
        self.optimizer.names |= names
        position = {p: i for i, p in enumerate(names)}
        filled_last = {
            b: min(position[p] for p in b.starts) for b in self.optimizer.buckets
        }  # backward starts at the end
        self._buckets = sorted(self.optimizer.buckets, key=filled_last.get, reverse=True)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.starts}
        for p in self._bucket_of.keys() - self._hooked:
            p.register_post_accumulate_grad_hook(self._gradient_ready)
        self._hooked |= self._bucket_of.keys()

    def _prepare_backward(self) -> None:
        if len(self._buckets) < len(self.optimizer.buckets):
            self._adopt_buckets()
        self._armed, self._backward_running = True, False
        self._next = 0  # buckets go out in one order on every rank
        self._on_its_way: Bucket | None = None
        for bucket in self._buckets:
            bucket.reset()

    def _backward_begins(self, *_) -> None:
        if self._armed and not self._backward_running:
            self._backward_running = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)

    def _gradient_ready(self, p: nn.Parameter) -> None:
        """Hook: autograd has just accumulated `p.grad`. Move it to its bucket; send what is next and full."""
        if not self._armed:
            return
        self._backward_begins()  # see `ddp`
        self._bucket_of[p].take(p)
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._send_next()

    def _send_next(self) -> None:
        """At most one bucket is on its way: a link carries them one by one, and each holds memory."""
        bucket = self._buckets[self._next]
        self._next += 1
        if bucket.holds_gradients:  # else all of it is frozen
            self._receive()
            bucket.send()
            self._on_its_way = bucket

    def _receive(self) -> None:
        if self._on_its_way:
            self._on_its_way.receive()
            self._on_its_way = None

    def _backward_done(self) -> None:
        self._armed = False
        missing = [p for bucket in self._buckets[self._next :] for p in bucket.starts if p in bucket.missing]
        if missing:
            raise RuntimeError(self.optimizer.unused_message(missing))
        self._receive()

    def _check_same_parameters(self, names: dict[nn.Parameter, str]) -> None:
        if self.optimizer.gradients_averaged:
            raise ValueError("ShardedDataParallel reduces gradients: build its optimizer with gradients_averaged=False")
        optimized = {p for bucket in self.optimizer.buckets for p in bucket.starts}
        if forgotten := [name for p, name in names.items() if p.requires_grad and p not in optimized]:
            raise RuntimeError(
                f"the optimizer does not have {', '.join(forgotten)}: "
                "build it over all parameters of the module, or set requires_grad=False before"
            )
        if strangers := [self.optimizer.names[p] for p in optimized - names.keys()]:
            raise RuntimeError(
                f"the optimizer has {', '.join(strangers)}, which the module has not: build it over the module"
            )
