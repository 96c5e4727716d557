"""Measure one step of lesson 15's model after changes such as `cut_blocks(model, mesh)`.

step = launch(one_step, 4, cut_blocks, enter_once, device="cpu")[0]
step.large_messages(), step.sent_bytes(4)
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from shardcourse.experiments.relative_error import relative_error
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import Traffic, record_traffic
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape
from shardsim import simulated, slept_computation
from shardsim.machines import machine
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

CONFIG = preset("1M", n_kv_heads=4)  # four ranks need four heads of keys and values
B, T = 4, 128
BTD = B * T * CONFIG.dim * 4  # bytes of the activations between two layers
SLOW = simulated("60 MB/s, 100 us")
Change = Callable[[Transformer, DeviceMesh], object]


@dataclass(frozen=True)
class Step:
    """Result of a step on a rank. Its gradients are put together again."""

    loss: float
    gradients: dict[str, Tensor]
    forward: Traffic
    backward: Traffic
    peak: dict[str, int]  # bytes by category

    def sent_bytes(self, n: int) -> int:
        return int(self.forward.wire_bytes(n) + self.backward.wire_bytes(n))

    def large_messages(self, n: int = 4) -> dict[str, dict[str, int]]:
        """Return how many messages of each kind carry activations (or slices of them)."""
        both = {"forward": self.forward, "backward": self.backward}
        return {
            name: dict(Counter(c.kind for c in t.collectives if n * c.input_bytes >= BTD)) for name, t in both.items()
        }

    def errors(self, other: "Step") -> str:
        """Compare with another step, in words."""
        error = max(relative_error(self.gradients[k], g) for k, g in other.gradients.items())
        return f"loss {self.loss:.6f}, one process {other.loss:.6f}; gradients off by {error:.0e} at most"


def whole(t: Tensor) -> Tensor:
    """Return a tensor on the CPU, put together from all ranks if it is a DTensor."""
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()


def one_step(*changes: Change, seq_len: int = T, gradients_too: bool = True) -> Step:
    torch.manual_seed(0)
    model = Transformer(CONFIG).to(local_device())
    mesh = init_device_mesh(local_device().type, (dist.get_world_size(),))
    for change in changes:
        change(model, mesh)
    tokens, targets = batch(0, 0, 0, 1, global_batch=B, seq_len=seq_len, device=local_device())
    with MemoryTracker(model) as tracker, loss_parallel():
        with record_traffic() as forward:
            loss = model(tokens, targets)
        with record_traffic() as backward:
            loss.backward()
    gradients = {name: whole(p.grad) for name, p in model.named_parameters() if gradients_too}
    return Step(whole(loss).item(), gradients, forward, backward, tracker.peak.by_category())


def bytes_at(seq_lens: tuple[int, ...], *changes: Change) -> dict[int, int]:
    """Return the bytes that a rank sends in a step, by the tokens of the step."""
    n = dist.get_world_size()
    return {B * t: one_step(*changes, seq_len=t, gradients_too=False).sent_bytes(n) for t in seq_lens}


def planned_peak(n: int, **strategy: Any) -> dict[str, float]:
    """Return the planner's bytes of a rank by category, from shapes alone."""
    shape, job = Shape.of("1M", CONFIG), {"precision": "fp32", "optimizer": "sgd", "micro_batch": B, "seq_len": T}
    setup = setup_of(shape, machine("dgx-h100"), n, sharding="DDP" if n > 1 else "NONE", **job, **strategy)
    return memory_plan(setup).peak.by_category()


def timeline_of(*changes: Change) -> Timeline:
    """Return the timeline of a second step. Attention and feed-forward sleep 10 ms each instead of computing."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for i, block in enumerate(model.blocks):
        for half in (block.attention, block.feed_forward):
            slept_computation.sleep_in(half, forward_s=0.01, name=f"blocks.{i}")
    for change in changes:
        change(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    tokens = torch.zeros(B, T, dtype=torch.long)
    for _ in range(2):
        dist.barrier()
        with record_timeline(model) as recording, loss_parallel():
            model(tokens, tokens).backward()
    return _without_buckets(recording.timeline)


def _without_buckets(timeline: Timeline) -> Timeline:
    """Return the timeline without the numbers of buckets, which tensor parallelism has not."""
    spans = (replace(s, unit="") if s.unit.startswith("bucket") else s for s in timeline.spans)
    return Timeline(timeline.rank, tuple(spans))
