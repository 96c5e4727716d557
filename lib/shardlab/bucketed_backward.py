"""Backward in buckets: a bucket of gradients is sent as soon as it is full, while backward computes the next ones.

DDP and ZeRO-2 share this. They differ in what they send of a bucket: DDP all_reduces it, so that every rank gets the
mean; ZeRO-2 reduce_scatters it, so that each rank gets the mean of its own slice.

[Note: the order of events]
    forward            decides whether the backward that follows communicates, and empties the buckets
    _outputs_reached   a hook on forward's outputs: calls _backward_begins. torch.autograd.grad (for a gradient penalty
                       or a saliency map) triggers this hook too; the hook then does nothing
    _backward_begins   registers a callback that autograd calls at the end of backward
    _gradient_ready    a hook on each parameter: moves its gradient into a bucket, and sends buckets that are full
    _backward_done     that callback: waits for the messages that are still under way

Source: Li et al. 2020, "PyTorch Distributed" (VLDB), sections 3.2.2 and 3.2.3; torch's DistributedDataParallel.
"""

from collections.abc import Iterable
from contextlib import contextmanager
from enum import Enum, auto
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.backward_hooks import after_gradient, before_backward, check_gradient, inside_backward, while_alive
from shardlab.nested_tensors import with_gradient_anywhere


class Phase(Enum):
    LOCAL = auto()  # the next backward sends nothing
    ARMED = auto()  # the next backward communicates
    RUNNING = auto()  # that backward is running


class FillingBucket(Protocol):
    """Parameters whose gradients are sent in one message."""

    missing: set[nn.Parameter]  # parameters whose gradient is not in the bucket yet

    def reset(self) -> None:
        """Empty the bucket: every gradient is missing, and no message is under way."""


class BucketedBackward(nn.Module):
    """Run `module`, and send buckets of gradients during backward.

    A subclass sets `buckets` and `bucket_of`, and implements `take`, `send`, `finish` and `name_of`.

    With `broadcast_buffers`, rank 0's buffers are broadcast before the first forward, and before each forward that
    follows one with gradients outside `no_sync`. An evaluation broadcasts them before its first batch only.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None, broadcast_buffers: bool) -> None:
        super().__init__()
        self.module, self.group, self.broadcast_buffers = module, group, broadcast_buffers
        self.buckets: list[FillingBucket] = []  # every rank sends them in this order, even if a later one is full first
        self.bucket_of: dict[nn.Parameter, FillingBucket] = {}
        self._sync = True  # False inside no_sync
        self._phase = Phase.LOCAL
        self._buffers_may_differ = True  # torch's require_forward_param_sync
        embeddings = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        if writes := [name or "the module" for name, m in embeddings if m.max_norm is not None]:
            raise ValueError(f"{', '.join(writes)} has max_norm: each rank's forward would change other rows")

    # Implemented by subclasses

    def take(self, p: nn.Parameter) -> None:
        """Move p's gradient into its bucket."""
        raise NotImplementedError

    def send(self, bucket) -> None:
        """Begin to reduce a full bucket; called in the order of `buckets`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for the messages that are under way. Raises RuntimeError if a gradient is missing."""
        raise NotImplementedError

    def name_of(self, p: nn.Parameter) -> str:
        """Return p's name, for errors."""
        raise NotImplementedError

    def holds_already(self, p: nn.Parameter) -> bool:
        """Return whether p's bucket holds a gradient of this backward to which another one can't be added."""
        return False

    # Shared by subclasses

    def forward(self, *args, **kwargs):
        communicates = self._sync and torch.is_grad_enabled() and any(p.requires_grad for p in self.bucket_of)
        if communicates:
            self._prepare_backward()
        elif torch.is_grad_enabled() and self._phase is Phase.RUNNING and not inside_backward():
            self._prepare_backward()  # an exception broke off the last backward: forget what it had taken
            self._phase = Phase.LOCAL
        if self.broadcast_buffers and self._buffers_may_differ:
            broadcast_tensors(self.module.buffers(), self.group)
        output = self.module(*args, **kwargs)
        self._buffers_may_differ = communicates
        for t in with_gradient_anywhere(output) if communicates else []:
            before_backward(t, while_alive(self._outputs_reached, self))
        return output

    @contextmanager
    def no_sync(self):
        """Keep the gradients of forwards inside local and add them up; the first backward outside sends the sum."""
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
        """Register a hook on p that moves its gradients into its bucket, for as long as this engine lives."""
        after_gradient(p, self._gradient_ready)

    def __getstate__(self) -> dict:
        raise TypeError(f"{type(self).__name__} can't be copied or pickled: copy its `module`, or save a state_dict()")

    def _outputs_reached(self, *_) -> None:
        if torch.autograd._is_checkpoint_valid():  # False if only the gradients of certain tensors are wanted
            if self._phase is Phase.LOCAL:  # a second backward through a forward, or one through an earlier forward
                self._prepare_backward()
            self._backward_begins()

    def _backward_begins(self) -> None:
        """Register a callback for the end of backward, not of a nested backward that a reentrant checkpoint runs."""
        if self._phase is Phase.ARMED:
            if torch.is_grad_enabled():
                raise RuntimeError(
                    f"rank {dist.get_rank()}: backward(create_graph=True): averaged gradients have no graph. Call "
                    "torch.autograd.grad(..., create_graph=True), and add what you make of it to the loss"
                )
            self._phase = Phase.RUNNING
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)

    def _gradient_ready(self, p: nn.Parameter) -> None:
        """Move `p.grad`, which autograd has just accumulated, into its bucket; send the next buckets if full."""
        if self._phase is Phase.LOCAL:
            return
        self._backward_begins()  # the loss may come from a tensor that forward kept and did not return
        check_gradient(p, self.name_of(p))
        if self.bucket_of[p] in self.buckets[: self._next] or self.holds_already(p):
            raise RuntimeError(
                f"rank {dist.get_rank()}: {self.name_of(p)} got a second gradient in one backward, after its bucket "
                "had taken the first: checkpoint with use_reentrant=False"
            )
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
    """Send rank 0's values to all ranks. Backends send contiguous memory, so others are sent as copies.

    Raises RuntimeError if elements of a tensor overlap, as an expanded tensor's do.
    """
    for t in tensors:
        sent = t.detach().contiguous()
        dist.broadcast(sent, group_src=0, group=group)
        if not t.is_contiguous():
            t.detach().copy_(sent)
