"""A data-parallel job for lesson 3, at 1/100 of its size: layers sleep as long as a GPU would compute, on a real clock.

A hundredth of the bytes over a hundredth of the bandwidth takes the same time. So times are the times of the whole job,
and all sizes that go in or out are of the whole job, too. The model, autograd, DDP and its messages are real; made up
are the time of matrix products and the time of the network (`shardsim.process_group`).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import nn

from shardlab.ddp import DDP, MIB, assign_buckets
from shardlab.measure.step_time import time_step
from shardlab.model import Transformer, preset
from shardsim import process_group
from shardsim.closed_forms import Cluster, nccl_s
from shardsim.machines import machine
from shardtrace.timeline import Span, Timeline

SCALE = 100
TOKENS = 12_288  # of a rank, in a step
FLOPS_PER_S = 125e12  # 40 % of the 312 TFLOP/s of an A100 in bf16


def backward_s(n_params: int) -> float:
    """Seconds of backward of a layer with n parameters: 4 operations a parameter and token. Forward takes half."""
    return 4 * n_params * SCALE * TOKENS / FLOPS_PER_S


class Job:
    """The job's gradients in the order in which backward makes them: bytes, and seconds since backward began."""

    def __init__(self) -> None:
        model = Transformer(preset("3M"))
        self._params = list(model.parameters())
        slept = {layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)}
        order = self._params[::-1]
        self.sizes_bytes = [p.nbytes * SCALE for p in order]
        self.ready_s = list(accumulate(backward_s(p.numel()) if p in slept else 0.0 for p in order))
        self.bytes = sum(self.sizes_bytes)
        self.backward_s, self.forward_s = self.ready_s[-1], self.ready_s[-1] / 2

    def buckets(self, cap_mib: float) -> list[int]:
        """Return how many gradients each of DDP's buckets holds, in the order in which they leave."""
        cap_bytes = int(cap_mib * MIB / SCALE)
        return [len(bucket) for bucket in assign_buckets(self._params, cap_bytes, cap_bytes)]


def nccl_message_s(name: str, *, nodes: int, gpus_per_node: int) -> Callable[[float], float]:
    """Return a function of a message's bytes: seconds of an all_reduce that NCCL runs on nodes of this machine."""
    of = machine(name)
    cluster = Cluster.of(of, nodes, gpus_per_node, of.nics_per_node)
    return lambda n_bytes: nccl_s(cluster, "all_reduce", n_bytes)


class _PretendGPU:
    """Works through layers on a timetable, which the small real computation is a part of."""

    def __init__(self, slowdown: float = 1.0) -> None:
        self.slowdown, self.due_s = slowdown, 0.0

    def start(self) -> None:
        self.due_s = time.monotonic()

    def compute(self, seconds: float) -> None:
        self.due_s += seconds * self.slowdown
        time.sleep(max(0.0, self.due_s - time.monotonic()))

    def runs(self, model: nn.Module) -> nn.Module:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                seconds = backward_s(layer.weight.numel())
                layer.register_forward_hook(lambda layer, inputs, out, s=seconds: _Slept.apply(out, self, s))
        return model


class _Slept(torch.autograd.Function):
    """The identity, in the time that the layer before it takes on a pretended GPU."""

    @staticmethod
    def forward(ctx, x, gpu, seconds):
        ctx.gpu, ctx.seconds = gpu, seconds
        gpu.compute(seconds / 2)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.gpu.compute(ctx.seconds)  # autograd computes the layer's own gradients after this
        return grad, None, None


def torch_ddp(cap_mib: float) -> Callable[[nn.Module], nn.Module]:
    """Return a wrapper: torch's DDP, with a `bucket_cap_mb` for the scaled-down model."""
    return partial(nn.parallel.DistributedDataParallel, bucket_cap_mb=cap_mib / SCALE, gradient_as_bucket_view=True)


def step_times(caps_mib: Iterable[float], after_backward: Callable[[nn.Module], None], rounds: int = 3) -> dict:
    """Seconds of each step by bucket size; "alone": one that sends nothing; "by hand": one with `after_backward`.

    All take turns, so that a disturbance meets all alike.
    """
    steps = {"alone": _step(lambda m: m), "by hand": _step(lambda m: m, after_backward)}
    steps |= {cap: _step(torch_ddp(cap)) for cap in caps_mib}
    times: dict = {name: [] for name in steps}
    for _ in range(2 + rounds):  # torch makes its buckets anew after the first step
        for name, step in steps.items():
            times[name].append(time_step(step))
    return {name: seconds[2:] for name, seconds in times.items()}


def _step(wrap: Callable, after_backward: Callable[[nn.Module], None] = lambda model: None) -> Callable[[], None]:
    gpu = _PretendGPU()
    model = wrap(gpu.runs(Transformer(preset("3M"))))
    tokens = torch.zeros(1, 8, dtype=torch.long)

    def step() -> None:
        model.zero_grad()
        gpu.start()
        model(tokens, tokens).backward()
        after_backward(model)

    return step


def traced_step(cap_mib: float, slow_rank: int | None = None, rounds: int = 6) -> Timeline:
    """Return this rank's timeline of the fastest step. `slow_rank` computes 1.3 times as long as the others."""
    gpu = _PretendGPU(1.3 if dist.get_rank() == slow_rank else 1.0)
    ddp = DDP(gpu.runs(Transformer(preset("3M"))), bucket_cap_mb=cap_mib / SCALE, gradient_as_bucket_view=True)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    steps = []
    for _ in range(1 + rounds):  # the first warms up
        ddp.zero_grad()
        dist.barrier()
        process_group.clear()
        gpu.start()
        began_s = time.monotonic()
        loss = ddp(tokens, tokens)
        turned_s = time.monotonic()
        loss.backward()
        spans = [Span("compute", "forward", began_s, turned_s), Span("compute", "backward", turned_s, gpu.due_s)]
        for i, c in enumerate(process_group.collectives()):
            spans.append(Span("link", c.kind, c.started_s, c.finished_s, f"bucket {i}", c.bytes, c.issued_s))
        steps.append(Timeline(dist.get_rank(), tuple(spans)))
    longest_s = torch.tensor([step.duration_s for step in steps[1:]])
    dist.all_reduce(longest_s, dist.ReduceOp.MAX)  # of all ranks, so that all return the same step
    return steps[1 + int(longest_s.argmin())]
