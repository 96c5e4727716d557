"""Overlap in labs 2 and 3, on ranks that wait as NCCL's do: no wait blocks the host, synchronous calls return None.

Stand-ins over gloo: a stream on which works are queued that the host does not wait for, and events that complete when
all works queued before them have. The ranks' gradients are computed at once, as if the GPU needed no time.
"""

import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD

from grading.checks import device_timestamps
from grading.checks.device_timestamps import DeviceClock
from grading.checks.lab2_ddp import on_ranks as lab2
from grading.checks.lab3_zero import judge_overlap
from grading.checks.lab3_zero import on_ranks as lab3
from shardlab import launch

N = 2


class Stream:
    """Works that the stream waits for, with the moments at which they are done."""

    def __init__(self) -> None:
        self.waited_for: list[dist.Work] = []
        self.block = dist.Work.wait

    def done_s(self, works: list[dist.Work]) -> float:
        for work in works:
            self.block(work)
        return time.time()


class Event:
    """Stands in for torch.cuda.Event on `stream`."""

    stream: Stream

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.recorded_s, self.before = time.time(), list(self.stream.waited_for)

    def synchronize(self) -> None:
        self.done_s = self.stream.done_s(self.before) if self.before else self.recorded_s

    def elapsed_time(self, later: "Event") -> float:
        return (later.done_s - self.done_s) * 1e3


def wait_as_nccl() -> Stream:
    """From here on, this rank's all_reduces and waits are as NCCL's, and `DeviceClock` has events."""
    stream = Event.stream = Stream()
    original = dist.ProcessGroup.allreduce

    def allreduce(group, tensors, options):
        work = original(group, tensors, options)
        if options.asyncOp:
            return work
        stream.waited_for.append(work)
        return None

    dist.ProcessGroup.allreduce = allreduce
    dist.Work.wait = lambda work, *_: stream.waited_for.append(work)
    device_timestamps.events_of = lambda device: Event
    return stream


class InHooks(torch.nn.Module):
    """Reduces each gradient in its hook.

    It blocks there ("sync"), waits there ("wait", or "device": for all of the device), or after backward ("late").
    """

    def __init__(self, module, bucket_cap_mb: float, how: str) -> None:
        super().__init__()
        self.module, self.how, self.works, self.syncs = module, how, [], True
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p) -> None:
        if not self.syncs:
            return
        work = dist.all_reduce(p.grad, async_op=self.how != "sync")
        assert (work is None) == (self.how == "sync")
        if self.how == "wait":
            work.wait()
        elif work is not None:
            self.works.append(work)
        if self.how == "device":
            torch.cuda.synchronize()

    def forward(self, *args):
        return self.module(*args)

    def backward(self, loss, n_tokens=1) -> None:
        loss.backward()
        while self.works:
            self.works.pop(0).wait()

    @contextmanager
    def no_sync(self):
        self.syncs = False
        yield
        self.syncs = True


def last_gradient_and_waking(how: str) -> dict:
    stream = wait_as_nccl()
    seen = lab2.late_rank(partial(InHooks, how=how), seed=0, cap_mb=0.25)
    stream.done_s(stream.waited_for)
    return seen


@pytest.mark.parametrize(("how", "stands_still"), [("sync", True), ("wait", True), ("late", False)])
def test_lab_2_sees_a_stream_that_waits_in_backward(how, stands_still):
    """Rank 0 comes late. The other rank's host makes all gradients meanwhile; its stream may not."""
    late, other = launch(last_gradient_and_waking, N, how, device="cpu", stream=False)
    assert (other["last_gradient_s"] >= late["woke_s"]) == stands_still


class Zero(InHooks):
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, how: str, **defaults) -> None:
        super().__init__(module, bucket_cap_mb, how)
        self.optimizer = SGD(module.parameters(), lr=0.0)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def recorded(how: str) -> dict:
    stream = wait_as_nccl()
    torch.cuda.synchronize = lambda: stream.done_s(stream.waited_for)
    reply = lab3.record_step(partial(Zero, how=how), seed=0, tier="cpu", shares=[4, 4], cap_mb=0.25)
    stream.done_s(stream.waited_for)
    return {key: reply[key] for key in ("gradients", "ends", "collectives")}


@pytest.mark.parametrize(("how", "hidden"), [("sync", 0.0), ("wait", 0.0), ("device", 0.0), ("late", 1.0)])
def test_lab_3_sees_a_call_that_blocks_the_stream(how, hidden):
    """The last gradient's message has none after it: it is the embedding's, 2% of the bytes."""
    for reply in launch(recorded, N, how, device="cpu", stream=False):
        assert judge_overlap.covered(reply) == pytest.approx(hidden, abs=0.03)
        assert judge_overlap.issued_early(reply) > 0.95


def test_without_a_gpu_a_moment_is_a_time():
    clock, before_s = DeviceClock(torch.device("cpu")), time.time()
    assert before_s <= clock.seconds(clock.now()) <= time.time()
