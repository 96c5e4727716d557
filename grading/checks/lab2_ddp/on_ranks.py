"""Lab 2 on the ranks: what the submission is asked to do, and what the drills record there."""

import operator
import time
from contextlib import nullcontext, suppress

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grading.boxes.trim_memory import rest
from grading.checks.device_timestamps import DeviceClock
from grading.checks.lab2_ddp.cpu_time_limit import OutOfTime, seconds_of_computing
from grading.checks.lab2_ddp.refused_engines import own_engine
from grading.judge.tensor_projections import project, project_cheaply
from grading.judge.timed_laps import serve_laps
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.ddp import MIB, assign_buckets
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch
from shardlab.tier import TIERS

IGNORED = -100  # cross_entropy's ignore_index
# Layers of the model; micro-batches a step; samples a micro-batch; tokens a sample.
GRADIENT_SHAPE = dict(n_layers=2, samples=2, seq_len=32)
MICRO_BATCHES = 1, 3, 1, 2  # of each step whose gradients are compared; the first step has one, and so has a later one
ACCOUNT_SHAPE = dict(n_layers=4, count=3, samples=2, seq_len=64)
WIDE = "3M"  # the model of the drill `memory`: so large that the system's counts show a copy of it
# By tier. On a GPU, the model that a CPU trains would be launches of kernels only: these take longer to compute than to
# launch, and a CPU can still check a lap. `caps`: bucket sizes, in those of a CPU.
LAP_SHAPES = {
    "cpu": dict(size="1M", n_layers=4, count=2, samples=2, seq_len=64, caps=1),
    "gpu1": dict(size="60M", n_layers=4, count=2, samples=2, seq_len=128, caps=16),
    "gpu4": dict(size="125M", n_layers=4, count=2, samples=2, seq_len=256, caps=32),
}
STEPS_OF_A_LAP = 2
NAP_IN_STEPS, SHORTEST_NAP_S, LONGEST_NAP_S = 5, 0.5, 5.0  # how long a rank sleeps in `late_rank`
PLANNING_S = 10.0  # seconds of computing for all plans
FROZEN = "blocks.0.attention_norm.weight"  # in the drill `gradients`


def cap_mb(seed: int) -> float:
    """Return the bucket size of this grading, in MiB. It is drawn, so that no answer can contain it."""
    return (0.25, 0.4375, 0.625)[seed % 3]  # with each of these, filling from the first parameter on makes other sizes


def lap_shape(tier: str) -> dict:
    """Return the shape of a lap: "gpu1" where ranks share a GPU, "gpu4" on more GPUs."""
    gpus = TIERS[tier].gpus
    return LAP_SHAPES["gpu4" if gpus > 1 else "gpu1" if gpus else "cpu"]


class PlainDDP(nn.Module):
    """The reference for memory and speed: torch's DDP, which averages over ranks and ignores token counts."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float) -> None:
        super().__init__()
        self.torchs = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)

    def forward(self, *args):
        return self.torchs(*args)

    def no_sync(self):
        return self.torchs.no_sync()

    def backward(self, loss_sum: Tensor, n_tokens: Tensor) -> None:
        (loss_sum / n_tokens.clamp(min=1)).backward()


def micro_batches(seed: int, step: int, rank: int, world_size: int, shape: dict, device: str | torch.device = "cpu"):
    """Yield `count` pairs of tokens and targets for this rank, on `device`; targets end in random padding.

    Rank 1's first micro-batch is all padding, and so is rank 2's last if there are several. Dividing by its number of
    tokens is a mistake. Skipping its backward is a mistake too, because the other ranks wait for it.
    """
    count, samples, seq_len = shape["count"], shape["samples"], shape["seq_len"]
    empty = {(1, 0), (2 % world_size, count - 1)} if count > 1 else {(1, 0)}
    for i in range(count):
        tokens, targets = batch(
            seed, 10 * step + i, rank, world_size, global_batch=samples * world_size, seq_len=seq_len
        )
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step * 10_007 + i * 101 + rank)
        lengths = torch.randint(1, seq_len + 1, (samples, 1), generator=draw)
        if (rank, i) in empty:
            lengths.zero_()
        yield tokens.to(device), targets.masked_fill(torch.arange(seq_len) >= lengths, IGNORED).to(device)


def token_loss(model, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of the valid targets, and the number of valid targets."""
    logits = model(tokens)
    loss_sum = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss_sum, (targets != IGNORED).sum()


def train_step(model, batches, after_micro_batch=lambda: None) -> list[tuple[Tensor, Tensor]]:
    """Run the step of the lab's statement. Return each number of tokens that was given, and what it was."""
    batches, given = list(batches), []
    for i, (tokens, targets) in enumerate(batches):
        with model.no_sync() if i < len(batches) - 1 else nullcontext():
            loss_sum, n_tokens = token_loss(model, tokens, targets)
            given.append((n_tokens, n_tokens.clone()))
            model.backward(loss_sum, n_tokens)
        after_micro_batch()
    return given


def build(
    seed: int, rank: int, n_layers: int, tied: bool = False, frozen: bool = False, size: str = "1M"
) -> Transformer:
    """Return a model whose weights differ between ranks until rank 0's are broadcast, those of norms too."""
    torch.manual_seed(seed * 1000 + rank)
    model = Transformer(preset(size, n_layers=n_layers, tied=tied))
    for p in (p for p in model.parameters() if p.dim() == 1):
        nn.init.uniform_(p, 0.5, 1.5)
    model.get_parameter(FROZEN).requires_grad_(not frozen)
    return model


def gradients_of(model: nn.Module) -> list[tuple[str, Tensor | None]]:
    return [(name, p.grad) for name, p in model.named_parameters()]


@own_engine(PlainDDP)
def gradients(implementation, seed: int, cap_mb: float) -> dict:
    """Return the projected weights and, for each of a few steps, the projected gradients.

    The later steps show what is left over from those before. A second model is trained in turn, and must not matter.
    """
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    other, module = (
        build(s, rank, GRADIENT_SHAPE["n_layers"], tied=True, frozen=True).to(device) for s in (seed + 1, seed)
    )
    models, steps = [implementation(m, bucket_cap_mb=cap_mb) for m in (other, module)], []
    for step, count in enumerate(MICRO_BATCHES):
        shape = GRADIENT_SHAPE | {"count": count}
        for m, model in zip((module, other), reversed(models), strict=True):
            m.zero_grad()
            given = train_step(model, micro_batches(seed, step, rank, world_size, shape, device))
            if not all(torch.equal(now, before) for now, before in given):
                raise ValueError("backward changed the n_tokens that it was given: make a new tensor")
        steps.append(project(gradients_of(module), seed))
    return {"weights": project(module.named_parameters(), seed), "steps": steps}


@own_engine(PlainDDP)
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


@own_engine(PlainDDP)
def memory(implementation, seed: int, cap_mb: float) -> dict:
    """Record what a third step holds, by category, at its peak and after it; and which buckets lie in one piece."""
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
    in_one_piece = [_in_one_piece([p.grad for p in ps]) for ps in buckets_of(module, cap_mb)]
    held = {"peak": tracker.peak.by_category(), "resident": dict(tracker.resident), "moments": moments(tracker)}
    return held | {"in_one_piece": in_one_piece}


def buckets_of(module: nn.Module, cap_mb: float) -> list[list[nn.Parameter]]:
    """Return the parameters of each bucket, as the lab's statement has them."""
    cap_bytes = int(cap_mb * MIB)
    return assign_buckets([p for p in module.parameters() if p.requires_grad], cap_bytes, cap_bytes)


def _in_one_piece(gradients: list[Tensor | None]) -> bool:
    """Return whether these lie side by side in one storage."""
    if any(g is None or not g.is_contiguous() for g in gradients):
        return False
    ends, begins = {g.data_ptr() + g.nbytes for g in gradients}, {g.data_ptr() for g in gradients}
    return len({g.untyped_storage().data_ptr() for g in gradients}) == len(begins - ends) == 1


@own_engine(PlainDDP)
def late_rank(implementation, seed: int, cap_mb: float) -> dict[str, float]:
    """Record when the late rank woke from a sleep in a second step's last backward, and when the last gradient came.

    The seed says which rank is late. Every message needs it. So a rank that waits for a message inside backward makes
    its last gradient after that: its host does, or on a GPU its stream.
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
        if rank == seed % world_size and len(done) == len(second) - 1:
            naps.append(nap_s)

    train_step(model, second, micro_batch_done)
    return seen | {"last_gradient_s": clock.seconds(last_gradient[0])}


@own_engine(PlainDDP)
def laps(implementation, cap_mb: float, tier: str, address: str) -> None:
    """Serve laps of two steps each; the gradients of both prove the work, and that they were exchanged."""
    rank, world_size, device, shape = dist.get_rank(), dist.get_world_size(), local_device(), lap_shape(tier)
    module = build(0, rank, shape["n_layers"], size=shape["size"]).to(device)
    model = implementation(module, bucket_cap_mb=shape["caps"] * cap_mb)

    def lap(order: dict) -> dict:
        proofs = []
        for step in range(STEPS_OF_A_LAP):
            module.zero_grad()
            train_step(model, micro_batches(order["seed"], step, rank, world_size, shape, device))
            proofs.append(lap_proof(module, order["seed"]))
        return {"steps": proofs}

    serve_laps(address, lap)


def lap_proof(module: nn.Module, seed: int) -> dict[str, list[float]]:
    """Return each gradient's and its magnitudes' products with a cosine.

    Products of a mean are the mean of the ranks' products, which are a few numbers. Magnitudes are not: for them the
    gradients themselves must have been exchanged.
    """
    made = [(name, g) for name, g in gradients_of(module) if g is not None]
    return project_cheaply([*made, *((f"{name} (magnitudes)", g.abs()) for name, g in made)], seed)


def plan(implementation, instances: list[dict]) -> list[list[int] | str | None]:
    """Return the submission's bucket plan for each instance; in place of an invalid plan, how it begins.

    The plan is None from the one on during which the seconds of computing were over.
    """
    plans = []
    with suppress(OutOfTime), seconds_of_computing(PLANNING_S):
        for instance in instances:
            plans.append(_counts(implementation(**instance)))
    return plans + [None] * (len(instances) - len(plans))


def _counts(plan) -> list[int] | str:
    try:
        return [operator.index(n) for n in plan]
    except TypeError:
        return ascii(plan)[:80]


REFERENCE = {"record_step": None, "memory": None, "laps": None}  # each runs PlainDDP
