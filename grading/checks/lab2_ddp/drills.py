"""Lab 2 on the ranks: what the submission is asked to do, and what is seen of it there."""

import json
import socket
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shardlab.data import batch
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset

WORLD_SIZE = 4
IGNORED = -100  # cross_entropy's own mark for a target that does not count
# Layers of the model; micro-batches a step, samples of each, tokens of a sample.
GRADIENT_SHAPE = dict(n_layers=2, count=3, samples=2, seq_len=32)
ACCOUNT_SHAPE = dict(n_layers=4, count=3, samples=2, seq_len=64)
LAP_SHAPE = dict(n_layers=4, count=2, samples=2, seq_len=64)


def cap_mb(seed: int) -> float:
    """The bucket size of this grading, in MiB: drawn, so that it can't be written into an answer."""
    return (0.25, 0.375, 0.5)[seed % 3]


class PlainDDP(nn.Module):
    """The yardstick for memory and speed: torch's DDP, which averages ranks and knows nothing of tokens."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float) -> None:
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum: Tensor, n_tokens: Tensor) -> None:
        (loss_sum / n_tokens.clamp(min=1)).backward()


def micro_batches(seed: int, step: int, rank: int, world_size: int, shape: dict):
    """`count` pairs of tokens and targets for this rank; targets end in padding of random length.

    Rank 1's first micro-batch is all padding: it happens, and dividing by its number of tokens is a mistake.
    """
    count, samples, seq_len = shape["count"], shape["samples"], shape["seq_len"]
    for i in range(count):
        tokens, targets = batch(
            seed, step * count + i, rank, world_size, global_batch=samples * world_size, seq_len=seq_len
        )
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step * 10_007 + i * 101 + rank)
        lengths = torch.randint(1, seq_len + 1, (samples, 1), generator=draw)
        if rank == 1 % world_size and i == 0 and count > 1:
            lengths.zero_()
        yield tokens, targets.masked_fill(torch.arange(seq_len) >= lengths, IGNORED)


def token_loss(model, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the losses of the valid targets, and how many there are."""
    logits = model(tokens)
    loss_sum = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss_sum, (targets != IGNORED).sum()


def train_step(model, batches, after_micro_batch=lambda: None) -> None:
    """The step that the lab's statement shows: communicate in the last micro-batch's backward only."""
    batches = list(batches)
    for i, (tokens, targets) in enumerate(batches):
        with model.no_sync() if i < len(batches) - 1 else nullcontext():
            loss_sum, n_tokens = token_loss(model, tokens, targets)
            model.backward(loss_sum, n_tokens)
        after_micro_batch()


def build(seed: int, rank: int, n_layers: int, tied: bool = False, frozen: bool = False) -> Transformer:
    """A model whose weights differ from rank to rank until somebody sends rank 0's."""
    torch.manual_seed(seed * 1000 + rank)
    model = Transformer(preset("1M", n_layers=n_layers, tied=tied))
    if frozen:
        model.blocks[0].attention_norm.weight.requires_grad_(False)
    return model


def project(model: nn.Module, seed: int) -> dict[str, list[float]]:
    """Each gradient as its products with four random directions, drawn for this seed: short, and hard to make up."""
    projections = {}
    for i, (name, p) in enumerate(model.named_parameters()):
        if p.grad is not None:
            draw = torch.Generator().manual_seed(seed * 10_000 + i)
            directions = torch.randn(4, p.numel(), generator=draw)
            projections[name] = (directions @ p.grad.detach().float().flatten()).tolist()
    return projections


def gradients(implementation, seed: int, cap_mb: float, tied: bool) -> dict[str, list[float]]:
    """The gradients of a second step, projected: after a first one, so that nothing of it may linger."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = build(seed, rank, GRADIENT_SHAPE["n_layers"], tied, frozen=True)
    model = implementation(module, bucket_cap_mb=cap_mb)
    for step in range(2):
        module.zero_grad()
        train_step(model, micro_batches(seed, step, rank, world_size, GRADIENT_SHAPE))
    return project(module, seed)


def account(implementation, seed: int, cap_mb: float) -> dict:
    """What a third step holds and sends: bytes by category, collectives by micro-batch, and when they went out."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = build(seed, rank, ACCOUNT_SHAPE["n_layers"])
    last_gradient = [0.0]
    for p in module.parameters():  # registered before the submission's own hooks, so called before them
        p.register_post_accumulate_grad_hook(lambda p: last_gradient.__setitem__(0, time.time()))
    model = implementation(module, bucket_cap_mb=cap_mb)
    for step in range(2):
        module.zero_grad()
        train_step(model, micro_batches(seed, step, rank, world_size, ACCOUNT_SHAPE))
    module.zero_grad()
    ends: list[float] = []
    batches = list(micro_batches(seed, 2, rank, world_size, ACCOUNT_SHAPE))
    with record_traffic() as traffic, MemoryTracker(module) as memory:
        train_step(model, batches, after_micro_batch=lambda: ends.append(time.time()))
    return {
        "peak": memory.peak.by_category(),
        "resident": dict(memory.resident),
        "collectives": [
            {
                "kind": c.kind,
                "bytes": c.input_bytes,
                "dtype": c.dtype,
                "micro_batch": sum(c.issued_s > end for end in ends),
                "before_last_gradient": c.issued_s < last_gradient[0],
            }
            for c in traffic.collectives
        ],
    }


def laps(implementation, cap_mb: float, address: str) -> None:
    """Stand ready, and at every "go" train two steps and reply with the gradients; leave when the referee hangs up."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = build(0, rank, LAP_SHAPE["n_layers"])
    model = implementation(module, bucket_cap_mb=cap_mb)
    referee = socket.socket(socket.AF_UNIX)
    referee.connect(address)
    with referee, referee.makefile("rw", encoding="utf-8") as lines:
        print(json.dumps({"rank": rank}), file=lines, flush=True)
        for line in lines:
            order = json.loads(line)
            for step in range(2):
                module.zero_grad()
                train_step(model, micro_batches(order["seed"], step, rank, world_size, LAP_SHAPE))
            print(json.dumps(project_few(module, order["seed"])), file=lines, flush=True)


def project_few(module: nn.Module, seed: int) -> dict[str, list[float]]:
    """A cheap proof of work: sums over every gradient against a cosine of a frequency drawn for this lap."""
    frequency = 0.1 + (seed % 9973) / 9973
    wave = torch.cos(frequency * torch.arange(max(p.numel() for p in module.parameters())))
    gradients = {name: p.grad.flatten() for name, p in module.named_parameters() if p.grad is not None}
    return {name: [float(wave[: g.numel()] @ g)] for name, g in gradients.items()}


def plan(implementation, instances: list[dict]) -> list[list[int]]:
    """The submission's bucket plan for each instance."""
    return [[int(n) for n in implementation(**instance)] for instance in instances]


REFERENCE = {"account": PlainDDP, "laps": PlainDDP}
