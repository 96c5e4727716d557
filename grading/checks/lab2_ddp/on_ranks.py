"""Lab 2 on the ranks: what the submission is asked to do, and what the drills record there."""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grading.boxes.trim_memory import rest
from grading.checks.device_clock import DeviceClock
from grading.judge.tensor_projections import project, project_cheaply
from grading.judge.timed_laps import serve_laps
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch
from shardlab.tier import TIERS

IGNORED = -100  # cross_entropy's ignore_index
# Layers of the model; micro-batches a step; samples a micro-batch; tokens a sample.
GRADIENT_SHAPE = dict(n_layers=2, count=3, samples=2, seq_len=32)
ACCOUNT_SHAPE = dict(n_layers=4, count=3, samples=2, seq_len=64)
WIDE = "3M"  # the model of the drill `memory`: so large that the system's counts show a copy of it
# By tier. On a GPU, the model that a CPU trains would be launches of kernels only: these take longer to compute than to
# launch, and a CPU can still check a lap. `caps`: bucket sizes, in those of a CPU.
LAP_SHAPES = {
    "cpu": dict(size="1M", n_layers=4, count=2, samples=2, seq_len=64, caps=1),
    "gpu1": dict(size="60M", n_layers=4, count=2, samples=2, seq_len=128, caps=16),
    "gpu4": dict(size="125M", n_layers=4, count=2, samples=2, seq_len=256, caps=32),
}
NAP_IN_STEPS, SHORTEST_NAP_S, LONGEST_NAP_S = 5, 0.5, 5.0  # how long rank 0 sleeps in `late_rank`


def cap_mb(seed: int) -> float:
    """Return the bucket size of this grading, in MiB. It is drawn, so that no answer can contain it."""
    return (0.25, 0.375, 0.5)[seed % 3]


def lap_shape(tier: str) -> dict:
    """Return the shape of a lap: "gpu1" where ranks share a GPU, "gpu4" on more GPUs."""
    if not TIERS[tier].gpus:
        return LAP_SHAPES["cpu"]
    return LAP_SHAPES["gpu4" if TIERS[tier].gpus > 1 else "gpu1"]


class PlainDDP(nn.Module):
    """The reference for memory and speed: torch's DDP, which averages over ranks and ignores token counts."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float) -> None:
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum: Tensor, n_tokens: Tensor) -> None:
        (loss_sum / n_tokens.clamp(min=1)).backward()


def micro_batches(seed: int, step: int, rank: int, world_size: int, shape: dict, device: str | torch.device = "cpu"):
    """Yield `count` pairs of tokens and targets for this rank, on `device`; targets end in random padding.

    Rank 1's first micro-batch is all padding, and so is rank 2's last. Dividing by its number of tokens is a mistake.
    Skipping its backward is a mistake too, because the other ranks wait for it.
    """
    count, samples, seq_len = shape["count"], shape["samples"], shape["seq_len"]
    for i in range(count):
        tokens, targets = batch(
            seed, step * count + i, rank, world_size, global_batch=samples * world_size, seq_len=seq_len
        )
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step * 10_007 + i * 101 + rank)
        lengths = torch.randint(1, seq_len + 1, (samples, 1), generator=draw)
        if count > 1 and (rank, i) in {(1 % world_size, 0), (2 % world_size, count - 1)}:
            lengths.zero_()
        yield tokens.to(device), targets.masked_fill(torch.arange(seq_len) >= lengths, IGNORED).to(device)


def token_loss(model, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of the valid targets, and the number of valid targets."""
    logits = model(tokens)
    loss_sum = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss_sum, (targets != IGNORED).sum()


def train_step(model, batches, after_micro_batch=lambda: None) -> None:
    """Run the step that the lab's statement shows: communicate in the last micro-batch's backward only."""
    batches = list(batches)
    for i, (tokens, targets) in enumerate(batches):
        with model.no_sync() if i < len(batches) - 1 else nullcontext():
            loss_sum, n_tokens = token_loss(model, tokens, targets)
            model.backward(loss_sum, n_tokens)
        after_micro_batch()


def build(
    seed: int, rank: int, n_layers: int, tied: bool = False, frozen: bool = False, size: str = "1M"
) -> Transformer:
    """Return a model whose weights differ between ranks until rank 0's are broadcast."""
    torch.manual_seed(seed * 1000 + rank)
    model = Transformer(preset(size, n_layers=n_layers, tied=tied))
    if frozen:
        model.blocks[0].attention_norm.weight.requires_grad_(False)
    return model


def gradients_of(model: nn.Module) -> list[tuple[str, Tensor | None]]:
    return [(name, p.grad) for name, p in model.named_parameters()]


def gradients(implementation, seed: int, cap_mb: float, tied: bool) -> dict[str, list[float]]:
    """Return the projected gradients of a second step. They show what is left over from the first one."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    module = build(seed, rank, GRADIENT_SHAPE["n_layers"], tied, frozen=True).to(device)
    model = implementation(module, bucket_cap_mb=cap_mb)
    for step in range(2):
        module.zero_grad()
        train_step(model, micro_batches(seed, step, rank, world_size, GRADIENT_SHAPE, device))
    return project(gradients_of(module), seed)


def record_step(implementation, seed: int, cap_mb: float) -> dict:
    """Record each collective of a third step: its micro-batch, and whether it preceded the last gradient."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    module = build(seed, rank, ACCOUNT_SHAPE["n_layers"]).to(device)
    last_gradient = [0.0]
    for p in module.parameters():  # registered before the submission's own hooks, so called before them
        p.register_post_accumulate_grad_hook(lambda p: last_gradient.__setitem__(0, time.time()))
    model = implementation(module, bucket_cap_mb=cap_mb)
    for step in range(2):
        module.zero_grad()
        train_step(model, micro_batches(seed, step, rank, world_size, ACCOUNT_SHAPE, device))
    module.zero_grad()
    ends: list[float] = []
    batches = list(micro_batches(seed, 2, rank, world_size, ACCOUNT_SHAPE, device))
    with record_traffic() as traffic:
        train_step(model, batches, after_micro_batch=lambda: ends.append(time.time()))
    return {
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


def memory(implementation, seed: int, cap_mb: float) -> dict:
    """Record what a third step holds, by category: at its peak, and after it."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    module = build(seed, rank, ACCOUNT_SHAPE["n_layers"], size=WIDE).to(device)
    model = implementation(module, bucket_cap_mb=cap_mb)
    for step in range(2):
        module.zero_grad()
        train_step(model, micro_batches(seed, step, rank, world_size, ACCOUNT_SHAPE, device))
    module.zero_grad()
    batches = list(micro_batches(seed, 2, rank, world_size, ACCOUNT_SHAPE, device))  # not counted
    with MemoryTracker(module) as tracker:
        train_step(model, batches)
    rest()
    return {"peak": tracker.peak.by_category(), "resident": dict(tracker.resident), "moments": moments(tracker)}


def late_rank(implementation, seed: int, cap_mb: float) -> dict[str, float]:
    """Record when rank 0 woke from a sleep in a second step's last backward, and when this rank's last gradient came.

    Every message needs rank 0. So a rank that waits for a message inside backward makes its last gradient after that:
    its host does, or on a GPU its stream.
    """
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    module = build(seed, rank, ACCOUNT_SHAPE["n_layers"]).to(device)
    clock = DeviceClock(device)
    naps, seen, last_gradient = [], {"woke_s": 0.0}, [clock.now()]

    def gradient_made(p: Tensor) -> None:
        if naps:
            time.sleep(naps.pop())
            seen["woke_s"] = time.time()
        last_gradient[0] = clock.now()

    for p in module.parameters():
        p.register_post_accumulate_grad_hook(gradient_made)
    model = implementation(module, bucket_cap_mb=cap_mb)
    first, second = (list(micro_batches(seed, step, rank, world_size, ACCOUNT_SHAPE, device)) for step in range(2))
    begin = time.monotonic()
    train_step(model, first)
    clock.seconds(clock.now())  # the device is through, too
    nap_s = min(LONGEST_NAP_S, max(SHORTEST_NAP_S, NAP_IN_STEPS * (time.monotonic() - begin)))
    module.zero_grad()
    done = []

    def micro_batch_done() -> None:
        done.append(True)
        if rank == 0 and len(done) == len(second) - 1:
            naps.append(nap_s)

    train_step(model, second, micro_batch_done)
    return seen | {"last_gradient_s": clock.seconds(last_gradient[0])}


def laps(implementation, cap_mb: float, tier: str, address: str) -> None:
    """Serve laps of two steps each; the gradients of the second step prove the work."""
    rank, world_size, device, shape = dist.get_rank(), dist.get_world_size(), local_device(), lap_shape(tier)
    module = build(0, rank, shape["n_layers"], size=shape["size"]).to(device)
    model = implementation(module, bucket_cap_mb=shape["caps"] * cap_mb)

    def lap(order: dict) -> dict:
        for step in range(2):
            module.zero_grad()
            train_step(model, micro_batches(order["seed"], step, rank, world_size, shape, device))
        return project_cheaply(gradients_of(module), order["seed"])

    serve_laps(address, lap)


def plan(implementation, instances: list[dict]) -> list[list[int] | str]:
    """Return the submission's bucket plan for each instance; in place of an invalid plan, its repr."""
    return [_counts(implementation(**instance)) for instance in instances]


def _counts(plan) -> list[int] | str:
    try:
        return [int(n) for n in plan]
    except (TypeError, ValueError):
        return repr(plan)


REFERENCE = {"record_step": PlainDDP, "memory": PlainDDP, "laps": PlainDDP}
