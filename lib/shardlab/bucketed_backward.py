"""Backward in buckets: gradients leave as soon as a bucket is full, while backward computes the next ones.

DDP and ZeRO-2 share this. They differ in what they send of a bucket: DDP all_reduces it, so that every rank gets the
mean; ZeRO-2 reduce_scatters it, so that each rank gets the mean of its own slice.

[Note: the order of events]
    forward            decides whether the backward that follows communicates, and empties the buckets
    _backward_begins   a hook on forward's outputs: asks autograd for a call when backward has ended. A call of
                       torch.autograd.grad, for a gradient penalty or a saliency map, passes here too and is let by
    _gradient_ready    a hook on each parameter: moves its gradient into a bucket, and sends buckets that are full
    _backward_done     waits for the messages that are still under way

Source: Li et al. 2020, "PyTorch Distributed" (VLDB), sections 3.2.2 and 3.2.3; torch's DistributedDataParallel.
"""

from collections.abc import Iterable
from contextlib import contextmanager
from enum import Enum, auto
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.nested_tensors import after_gradient, before_backward, refuse_sparse, with_gradient_anywhere


class Phase(Enum):
    LOCAL = auto()  # the next backward sends nothing
    ARMED = auto()  # a forward has asked its backward to communicate
    RUNNING = auto()  # that backward is under way


class FillingBucket(Protocol):
    """Parameters whose gradients travel in one message."""

    missing: set[nn.Parameter]  # those whose gradient this backward has still to bring

    def reset(self) -> None:
        """Empty the bucket: every gradient is missing, and nothing is under way."""


class BucketedBackward(nn.Module):
    """Run `module`, and send buckets of gradients during backward. A subclass sets `buckets` and says what is sent.

    With `broadcast_buffers`, rank 0's buffers go out before the first forward, and before each that follows a forward
    with gradients outside `no_sync`. In an evaluation that is before the first batch only.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None, broadcast_buffers: bool) -> None:
        super().__init__()
        self.module, self.group, self.broadcast_buffers = module, group, broadcast_buffers
        self.buckets: list[FillingBucket] = []  # sent in this order on every rank, whichever is full first
        self._sync = True  # False inside no_sync
        self._phase = Phase.LOCAL
        self._buffers_may_differ = True  # torch's require_forward_param_sync

    # What a subclass says

    def take(self, p: nn.Parameter) -> None:
        """Move p's gradient into its bucket."""
        raise NotImplementedError

    def send(self, bucket) -> None:
        """Begin to reduce a full bucket; called in the order of `buckets`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for what is under way. Raises RuntimeError if a gradient is missing."""
        raise NotImplementedError

    def name_of(self, p: nn.Parameter) -> str:
        """Return p's name, for errors."""
        raise NotImplementedError

    # What is the same

    def forward(self, *args, **kwargs):
        communicates = self._sync and torch.is_grad_enabled()
        if communicates:
            self._prepare_backward()
        if self.broadcast_buffers and self._buffers_may_differ:
            broadcast_tensors(self.module.buffers(), self.group)
        output = self.module(*args, **kwargs)
        self._buffers_may_differ = communicates
        for t in with_gradient_anywhere(output) if communicates else []:
            before_backward(t, self._outputs_reached)
        return output

    @contextmanager
    def no_sync(self):
        """Keep gradients of the forwards inside local, and add them up; the first backward outside sends the sum."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def _prepare_backward(self) -> None:
        self._phase, self._next = Phase.ARMED, 0
        for bucket in self.buckets:
            bucket.reset()

    def hook(self, p: nn.Parameter) -> None:
        """Watch p: its gradients go into its bucket from now on, for as long as this engine lives."""
        after_gradient(p, self._gradient_ready)

    def __getstate__(self) -> dict:
        name = type(self).__name__
        raise TypeError(f"{name} can't be copied or pickled: copy its `module`, or save a state_dict()")

    def _outputs_reached(self, *_) -> None:
        if torch.autograd._is_checkpoint_valid():  # else somebody asks for the gradients of certain tensors
            if self._phase is Phase.LOCAL:  # another backward through a forward that has had one, or before the last
                self._prepare_backward()
            self._backward_begins()

    def _backward_begins(self) -> None:
        """Ask for a call at backward's end. A reentrant checkpoint runs a backward inside, whose end is not meant."""
        if self._phase is Phase.ARMED:
            self._phase = Phase.RUNNING
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)

    def _gradient_ready(self, p: nn.Parameter) -> None:
        """Autograd has just accumulated `p.grad`: move it to its bucket, and send what is next and full."""
        if self._phase is Phase.LOCAL:
            return
        self._backward_begins()  # forward may have kept a tensor that it did not return, and the loss be made of it
        refuse_sparse(p.grad, self.name_of(p))
        self.take(p)
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._next += 1
            self.send(self.buckets[self._next - 1])

    def _backward_done(self) -> None:
        self._phase = Phase.LOCAL
        self.finish()


def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Send rank 0's values to all ranks. Backends send memory as it lies, so non-contiguous tensors go as copies.

    Raises RuntimeError if elements of a tensor overlap, as an expanded tensor's do.
    """
    for t in tensors:
        sent = t.detach().contiguous()
        dist.broadcast(sent, group_src=0, group=group)
        if not t.is_contiguous():
            t.detach().copy_(sent)
