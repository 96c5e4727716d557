"""Lab 3 on the ranks: what the submission is asked to do, and what the drills record there."""

import hashlib
import operator
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from grading.boxes.trim_memory import rest
from grading.checks.lab3_zero.collective_waits import watch_waits
from grading.checks.lab3_zero.tracked_and_untracked_tensors import Newcomers, held
from grading.checks.lab3_zero.updated_elements import watch_optimizers
from grading.checks.refused_course_code import refuse_finished_parts
from grading.judge.tensor_projections import project
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.text_batches import batch
from shardlab.tier import TIERS

RULE = "of shardlab import only assign_buckets, and write the rest yourself"
MIB = 1 << 20
# The model of `record_step`; below, its buckets and budgets a rank in MiB. The notebook states the same. `of_tier` says
# which tiers share an entry.
SIZES = {
    "cpu": dict(width=125, hidden=501, n_blocks=12, seq_len=16),
    "gpu1": dict(width=1021, hidden=4093, n_blocks=12, seq_len=64),
    "gpu4": dict(width=2045, hidden=8189, n_blocks=24, seq_len=128),
}
BUDGETS = {  # (a, b): a rank with the fraction s of all shares may hold a + b s
    "cpu": {"bucket_cap_mb": 0.25, "held_mib": (6.4, 12.0), "peak_mib": (9.3, 18.0)},
    "gpu1": {"bucket_cap_mb": 16, "held_mib": (410, 770), "peak_mib": (596, 1155)},
    "gpu4": {"bucket_cap_mb": 64, "held_mib": (3260, 6150), "peak_mib": (4760, 9220)},
}
SMALL = dict(width=29, hidden=61, n_blocks=3)  # the model of `train`, which judges numbers, not bytes
SMALL_SEQ_LEN = 24
OPTIMIZERS = {
    "none": (SGD, dict(lr=0.0)),
    "SGD": (SGD, dict(lr=0.05, momentum=0.9)),
    "SGD of tiny gradients": (SGD, dict(lr=1000.0, momentum=0.9)),  # beside their norm clipping's 1e-6 counts
    "AdamW": (AdamW, dict(lr=0.01, eps=1e-5, weight_decay=0.1)),  # an eps far above rounding errors
}
ACCOUNT_MICRO_BATCHES = 2


class Net(nn.Module):
    def __init__(self, width, hidden, n_blocks):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))  # one element: which rank owns it?
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(n_blocks)
        )
        self.out = nn.Linear(width, 256, bias=False)

    def forward(self, tokens, targets):
        x = self.scale * self.embedding(tokens)
        for block in self.blocks:
            x = x + block(F.layer_norm(x, x.shape[-1:]))
        return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())


class Poison(NamedTuple):
    """One element of one rank's gradient that is not finite, in one micro-batch of a step."""

    rank: int
    parameter: str
    element: int
    value: str  # "nan", "inf" or "-inf"
    micro_batch: int = 0


class PlannedStep(NamedTuple):
    micro_batches: int
    scale: float  # factor of the loss
    poison: Poison | None = None
    left_out: bool = False  # skip the step and its samples


class Replicated:
    """The program that the team has: every rank does everything. Its time tells how busy the machine is."""

    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        self.params, self.max_norm = list(module.parameters()), max_norm
        self.optimizer = optimizer_class(self.params, **defaults)

    def backward(self, loss):
        loss.backward()

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad.div_(dist.get_world_size()))
        norm = nn.utils.clip_grad_norm_(self.params, self.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def of_tier(by_tier: dict, tier: str) -> dict:
    """Return the entry of a tier: "gpu4" for those that need cards of 40 GB, "gpu1" for the other GPU tiers."""
    if not TIERS[tier].gpus:
        return by_tier["cpu"]
    return by_tier["gpu4" if tier in ("gpu4", "gpu8") else "gpu1"]


def budget_bytes(tier: str, what: str, fraction: float) -> float:
    """Return the bytes a rank with this fraction of all shares may hold: after a step ("held") or at its peak."""
    fixed, per_share = of_tier(BUDGETS, tier)[f"{what}_mib"]
    return (fixed + per_share * fraction) * MIB


def shares(seed: int, world_size: int) -> list[int]:
    """Return each rank's share in this grading: 4, but one rank has 5 and one has 2."""
    draw = torch.randperm(world_size, generator=torch.Generator().manual_seed(seed)).tolist()
    return [4 + (i == draw[0]) - 2 * (i == draw[-1]) for i in range(world_size)]


def build(seed: int, shape: dict) -> Net:
    torch.manual_seed(seed)
    return Net(shape["width"], shape["hidden"], shape["n_blocks"])


def samples(seed: int, number: int, rank: int, world_size: int, seq_len: int, device: str | torch.device = "cpu"):
    return batch(seed, number, rank, world_size, global_batch=world_size, seq_len=seq_len, device=device)


def owned(implementation, instances: list[dict]) -> list[list[list | str]]:
    """Return what the submission gives to each rank of each instance: pieces, or what it returned in their place."""
    refuse_finished_parts(implementation, RULE)
    return [[_pieces(implementation(i["sizes"], i["shares"], r)) for r in range(len(i["shares"]))] for i in instances]


def _pieces(returned) -> list[list[int]] | str:
    try:
        if isinstance(returned, list) and all(isinstance(piece, tuple) and len(piece) == 3 for piece in returned):
            return [[operator.index(x) for x in piece] for piece in returned]
    except TypeError:  # a float, for example
        pass
    return f"{returned!r:.60}"


def train(
    implementation, seed: int, cap_mb: float, shares: list[int], optimizer: str, max_norm: float, plan: list
) -> list[dict]:
    """Run the plan; return each step's norm, the weights' projected change and checksum, and unchanged elements."""
    if implementation is not Replicated:
        refuse_finished_parts(implementation, RULE)
    device = local_device()
    module = build(seed, SMALL).to(device)
    kernel = [(name, p.detach()) for name, p in module.named_parameters()]  # old addresses, as in compiled code
    start = [t.clone() for _, t in kernel]
    optimizer_class, defaults = OPTIMIZERS[optimizer]
    models = [build(seed + 1, SMALL).to(device), module, build(seed + 2, SMALL).to(device)]
    engines = [implementation(m, shares, cap_mb, max_norm, optimizer_class, **defaults) for m in models]
    zero, replies, number, moved = engines[1], [], 0, False  # the first stays, the last steps once: neither may matter

    def look() -> None:
        nonlocal moved
        moved = moved or [p.data_ptr() for p in module.parameters()] != [t.data_ptr() for _, t in kernel]

    for i, step in enumerate(PlannedStep(*fields) for fields in plan):
        if i == 1:
            train_step(engines[2], models[2], PlannedStep(1, 1.0), seed, number, device)
        with watch_optimizers(module) as updated:
            norm = 0.0 if step.left_out else train_step(zero, module, step, seed, number, device, look)
        number += step.micro_batches
        look()
        seen = {"moved": moved, "updates": updated.n_elements}
        replies.append(_norm(norm) | seen | report(kernel, start, seed))
    return replies


def _norm(returned) -> dict:
    """Return the norm as a number, NaN if it is none, and whether it is a float or a scalar tensor."""
    is_scalar = isinstance(returned, float) or (isinstance(returned, Tensor) and returned.dim() == 0)
    return {"norm": float(returned) if is_scalar else float("nan"), "is_scalar": is_scalar}


def train_step(zero, module: Net, step: PlannedStep, seed: int, number: int, device: torch.device, look=lambda: None):
    """Run this step's micro-batches, from every rank's sample `number` on, and return the result of `step`.

    `look` is called before each forward.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    poison = Poison(*step.poison) if step.poison else None
    for i in range(step.micro_batches):
        look()
        loss = module(*samples(seed, number + i, rank, n, SMALL_SEQ_LEN, device))
        hook = poisoned(module, poison, rank) if poison and i == poison.micro_batch else None
        zero.backward(step.scale / step.micro_batches * loss)
        if hook:
            hook.remove()
    return zero.step()


def poisoned(module: nn.Module, poison: Poison, rank: int):
    """Replace that element of the gradient until the returned handle is removed."""

    def spoil(gradient: Tensor) -> Tensor:
        spoilt = gradient.clone()
        if rank == poison.rank:
            spoilt.view(-1)[poison.element] = float(poison.value)
        return spoilt

    return dict(module.named_parameters())[poison.parameter].register_hook(spoil)


def report(weights: list[tuple[str, Tensor]], start: list[Tensor], seed: int) -> dict:
    changes = [(name, t - before) for (name, t), before in zip(weights, start, strict=True)]
    bits = hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for _, t in weights)).hexdigest()
    still = {name: int((change == 0).sum()) for name, change in changes}
    return {"change": project(changes, seed), "bits": bits, "still": still}


def record_step(implementation, seed: int, tier: str, shares: list[int], cap_mb: float) -> dict:
    """Record what two steps of two micro-batches hold at the end and at most; what a third sends, when, and updates.

    The optimizer's copies count as `in_copies`.
    """
    run = Run(implementation, seed, tier, shares)
    newcomers = Newcomers()
    with MemoryTracker(run.module) as memory:
        run.start(cap_mb)
        run.step()
        run.step()
        _arrays = newcomers.label(memory)  # must live until tracking ends
    gradients: list[tuple[int, float]] = []
    for i, p in enumerate(run.module.parameters()):
        p.register_hook(lambda gradient, i=i: gradients.append((i, time.time())))
    ends: list[float] = []
    with watch_optimizers(run.module) as updated, record_traffic() as traffic, watch_waits() as waits:
        run.step(after_backward=lambda: ends.append(time.time()))
    n = dist.get_world_size()
    return held(memory) | {
        "gradients": gradients,
        "ends": ends,
        "pieces": updated.pieces,
        "in_copies": updated.in_copies,
        "updates": updated.n_elements,
        "collectives": [
            {
                "kind": c.kind,
                "bytes": max(c.input_bytes, c.output_bytes),
                "sent": wire_bytes(c, n),
                "at": c.issued_s,
                "waited": waits.of(c.issued_s),
            }
            for c in traffic.collectives
        ],
    }


def memory(implementation, seed: int, tier: str, shares: list[int], cap_mb: float) -> dict:
    """Record what a third step holds, with nothing else on the rank.

    Everything else that the system sees on the rank then belongs to the submission.
    """
    run = Run(implementation, seed, tier, shares)
    run.start(cap_mb)
    run.step()
    run.step()
    with MemoryTracker(run.module) as memory:
        run.step()
    rest()
    return held(memory) | {"moments": moments(memory)}


class Run:
    """The tier's model and micro-batches; from `start` on the submission, too."""

    def __init__(self, implementation, seed: int, tier: str, shares: list[int]) -> None:
        if implementation is not Replicated:
            refuse_finished_parts(implementation, RULE)
        rank, n, device = dist.get_rank(), dist.get_world_size(), local_device()
        shape = of_tier(SIZES, tier)
        with device:
            self.module = build(seed, shape)
        self.kernel = [p.detach() for p in self.module.parameters()]
        numbers = range(ACCOUNT_MICRO_BATCHES)
        self.micro_batches = [samples(seed, i, rank, n, shape["seq_len"], device) for i in numbers]
        self._implementation, self._shares = implementation, shares

    def start(self, cap_mb: float) -> None:
        self.zero = self._implementation(self.module, self._shares, cap_mb, 1.0, AdamW, foreach=False)

    def step(self, after_backward=lambda: None) -> None:
        for tokens, targets in self.micro_batches:
            self.zero.backward(self.module(tokens, targets) / ACCOUNT_MICRO_BATCHES)
            after_backward()
        self.zero.step()


REFERENCE = {"train": Replicated, "memory": Replicated}
