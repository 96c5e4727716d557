"""`measure_step`: one training step of a sharded model on this rank, with its memory, messages and loss."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.text_batches import batch

ForwardBackward = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class MeasuredStep:
    """One rank's step. Each moment is {category: bytes}, with the categories of `shardlab.measure.ledger`."""

    after_forward: dict[str, int]
    after_backward: dict[str, int]
    between: dict[str, int]  # after the optimizer's step
    peak: dict[str, int]
    whole_bytes: int  # the most bytes of whole parameters and of gradients before they are reduced
    messages: Counter[str]  # number of messages by kind
    sent_bytes: float
    all_reduced_bytes: float  # the part of sent_bytes that all_reduces send
    loss: float
    largest_saved: tuple[int, ...]  # shape of the largest tensor that autograd saves for backward
    optimizer_has_dtensors: bool

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())


def forward_backward(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Run forward and backward, and return the loss."""
    loss = model(tokens, targets)
    loss.backward()
    return loss.detach()


def my_batch(micro_batch: int = 1, seq_len: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return this rank's tokens and targets."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sizes = {"global_batch": micro_batch * world_size, "seq_len": seq_len}
    return batch(seed, 0, rank, world_size, **sizes, device=local_device())


def measure_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    train: ForwardBackward = forward_backward,
    *,
    every_tensor: bool = False,
    **sizes: int,
) -> MeasuredStep:
    """Run one step to warm up and measure a second one.

    `optimizer` is AdamW if left out. `train` runs forward and backward. `sizes`: micro_batch, seq_len. With
    `every_tensor`, tensors that no operation uses are counted too, as "other".
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=False)
    inputs, saved = my_batch(**sizes), [torch.Size([0])]
    train(model, *inputs)
    optimizer.step()
    optimizer.zero_grad()

    def pack(t: Tensor) -> Tensor:
        saved.append(t.shape)
        return t

    with MemoryTracker(model, optimizer) as memory, record_traffic() as traffic:
        memory.label("other", *(_all_tensors() if every_tensor else ()))
        handle = model.register_forward_hook(lambda *_: memory.mark("forward"))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = train(model, *inputs).item()
        memory.mark("backward")
        optimizer.step()
        optimizer.zero_grad()
    handle.remove()
    moments = memory.timeline()
    at = {name: [held for s, held in moments if s <= marked_s][-1] for marked_s, name in memory.marks}
    return MeasuredStep(
        after_forward=at["forward"],
        after_backward=at["backward"],
        between=memory.resident,
        peak=memory.peak.by_category(),
        whole_bytes=max(held["unsharded"] for _, held in moments),
        messages=traffic.kinds(),
        sent_bytes=traffic.sent_bytes(),
        all_reduced_bytes=traffic.sent_bytes("all_reduce"),
        loss=loss,
        largest_saved=tuple(max(saved, key=torch.Size.numel)),
        optimizer_has_dtensors=all(isinstance(p, DTensor) for g in optimizer.param_groups for p in g["params"]),
    )


def _all_tensors() -> list[Tensor]:
    return [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.is_floating_point()]
