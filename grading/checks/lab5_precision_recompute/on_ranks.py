"""Lab 5 on the ranks: what the submission is asked to do, and what the drills record there."""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grading.checks.lab5_precision_recompute import reference_answers
from grading.checks.lab5_precision_recompute.flops import Flops
from grading.checks.lab5_precision_recompute.model_and_block_costs import (
    Block,
    FeedForward,
    Forget,
    Memory,
    Reader,
    price_list,
)
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.text_batches import batch
from shardlab.tier import TIERS

VOCAB = 256
SMALL = dict(dim=64, n_heads=8, hidden=(96, 160, 224, 288, 352), samples=2, seq_len=64)
LARGE = dict(dim=512, n_heads=8, hidden=(768, 1280, 1792, 2304, 2816), samples=4, seq_len=512)
SHAPES = {name: LARGE if tier.gpus else SMALL for name, tier in TIERS.items()}
DROPOUT, LR = 0.1, 3e-3
MODEL = {kind.__name__: kind for kind in (Block, FeedForward, Forget, Memory, Reader)}
N_TOKENS = 16  # the reply has their logits

# (bytes that a rank may hold in all, bytes of them for activations)
BUDGETS = {
    "cpu": {"wide": (4_050_000, 2_300_000), "narrow": (2_950_000, 1_100_000)},
    "cpu8": {"wide": (4_050_000, 2_300_000), "narrow": (2_950_000, 1_100_000)},
    "gpu1": {"wide": (370_000_000, 260_000_000), "narrow": (250_000_000, 140_000_000)},
    "gpu2": {"wide": (420_000_000, 260_000_000), "narrow": (310_000_000, 140_000_000)},
    "gpu4": {"wide": (370_000_000, 260_000_000), "narrow": (250_000_000, 140_000_000)},
    "gpu4-16gb": {"wide": (370_000_000, 260_000_000), "narrow": (250_000_000, 140_000_000)},
    "gpu8": {"wide": (340_000_000, 260_000_000), "narrow": (220_000_000, 140_000_000)},
    "gpu8-16gb": {"wide": (340_000_000, 260_000_000), "narrow": (220_000_000, 140_000_000)},
}


def shape_of(seed: int, tier: str) -> dict:
    """Return the tier's shape, with the blocks' widths in an order drawn for this seed."""
    shape = SHAPES[tier]
    return shape | {"hidden": random.Random(seed).sample(shape["hidden"], len(shape["hidden"]))}


def build(seed: int, shape: dict, dropout: float = 0.0) -> Reader:
    """Build the model with the same weights on every rank, in float32."""
    torch.manual_seed(seed)
    return Reader(VOCAB, shape["dim"], shape["n_heads"], shape["hidden"], dropout)


def batch_of(
    seed: int, step: int, shape: dict, rank: int, world_size: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, targets, and positions on `device`, or this rank's; positions lie far inside a long document."""
    samples, seq_len, device = shape["samples"], shape["seq_len"], device or local_device()
    tokens, targets = batch(
        seed, step, rank, world_size, global_batch=samples * world_size, seq_len=seq_len, device=device
    )
    start = 10_000 + 64 * random.Random(f"{seed} {step}").randrange(300)
    return tokens, targets, torch.arange(seq_len, device=device, dtype=torch.float32) + start


def _acquainted(implementation):
    """Replace the notebook's own model classes by ours, so that `isinstance` in the submission's code finds ours."""
    names = getattr(implementation, "__globals__", {})
    names.update({name: kind for name, kind in MODEL.items() if name in names})
    return implementation


def _model(returned, call: str) -> nn.Module:
    if not isinstance(returned, nn.Module):
        raise TypeError(f"{call} returned {returned!r:.60}; it is to return the model that is trained")
    return returned


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(tokens, positions)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def precision(implementation, seed: int, tier: str, steps: int) -> dict:
    """Return the losses, the first logits, what a step sends, and what is held between steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shape = shape_of(seed, tier)
    module = build(seed, shape).to(local_device())
    shapes = {p.shape for p in module.parameters()}
    batches = [batch_of(seed, step, shape, rank, world_size) for step in range(steps)]  # not counted
    with MemoryTracker(module) as memory:
        model = _model(_acquainted(implementation)(module), "shard(model)")
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        losses, first = [], None
        for data in batches:
            loss, logits = loss_of(model, *data)
            first = logits.detach() if first is None else first
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            del loss, logits
        dtype, first = str(first.dtype)[6:], some_logits(first, shape).tolist()
        held = dict(memory.resident)
    return {
        "losses": losses,
        "logits": first,
        "logits_dtype": dtype,
        "dtypes": _dtypes(model, optimizer),
        "shard_bytes": sum(_local(p).nbytes for p in model.parameters()),
        "whole": project(_whole(model, shapes), seed),
        "held": held,
        "sent": _sent(model, seed, steps, shape, rank, world_size),
    }


def some_logits(logits: Tensor, shape: dict) -> Tensor:
    """Return the logits of each sample's last tokens, flat, in float32."""
    return logits.float().cpu()[:, -N_TOKENS // shape["samples"] :].flatten()


def _sent(model, seed: int, step: int, shape: dict, rank: int, world_size: int) -> list[dict]:
    with record_traffic() as traffic:
        loss_of(model, *batch_of(seed, step, shape, rank, world_size))[0].backward()
    return [{"kind": c.kind, "dtype": c.dtype, "bytes": wire_bytes(c, world_size)} for c in traffic.collectives]


def _dtypes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    """Return the dtypes of the parameters and of AdamW's moments."""
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.ndim]
    dtypes = {"parameters": list(model.parameters()), "optimizer": states}
    return {name: sorted({str(t.dtype)[6:] for t in tensors}) for name, tensors in dtypes.items()}


def _local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


def _whole(model: nn.Module, shapes: set) -> list[tuple[str, Tensor]]:
    """Return the parameters that a rank holds whole; all ranks should hold the same."""
    return [(name, _local(p)) for name, p in model.named_parameters() if p.shape in shapes and not _is_sharded(p)]


def _is_sharded(p: Tensor) -> bool:
    return isinstance(p, DTensor) and any(placement.is_shard() for placement in p.placements)


def choose(implementation, instances: list[list]) -> list:
    """Return the submission's plan for each [blocks, budget_bytes]; in place of an invalid plan, its repr."""
    as_pairs = [([{w: tuple(p) for w, p in block.items()} for block in blocks], n) for blocks, n in instances]
    plans = [implementation(blocks, budget_bytes) for blocks, budget_bytes in as_pairs]
    return [p if p is None else list(map(str, p)) if isinstance(p, list | tuple) else f"{p!r:.60}" for p in plans]


def recompute(implementation, seed: int, tier: str, plans: list[list[str]], dropout: float) -> list[dict]:
    """Return, for each plan on one rank, the gradients of two steps, and the larger FLOPs and bytes."""
    shape, replies = shape_of(seed, tier), []
    for plan in plans:
        module = build(seed, shape, dropout).to(local_device())
        model = _model(_acquainted(implementation)(module, list(plan)), "recompute(model, plan)")
        steps = [_step(model, module, seed, step, shape) for step in range(2)]
        most = {key: max(s[key] for s in steps) for key in ("flops", "waiting_bytes", "peak_bytes")}
        replies.append(most | {"gradients": [s["gradients"] for s in steps]})
    return replies


def _step(model, module: nn.Module, seed: int, step: int, shape: dict) -> dict:
    """Return the gradients, FLOPs, peak bytes, and bytes held before backward, all of the same step."""
    module.zero_grad()
    data = batch_of(seed, step, shape, 0, 1)
    with MemoryTracker(module) as memory, Flops() as flops:
        before = sum(memory.resident.values())
        loss, logits = loss_of(model, *data)
        del logits
        waiting = sum(memory.resident.values()) - before
        loss.backward()
    gradients = project(((name, p.grad) for name, p in module.named_parameters()), seed)
    counted = {"flops": flops.total, "waiting_bytes": waiting, "peak_bytes": memory.peak.peak_bytes}
    return {"gradients": gradients} | counted


def both(implementation, seed: int, tier: str, budget: str, steps: int) -> dict:
    """Return the losses, the peak of all steps, and the mean FLOPs of a step."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    shape = shape_of(seed, tier)
    module = build(seed, shape, DROPOUT).to(device)
    batches = [batch_of(seed, step, shape, rank, world_size) for step in range(steps)]
    blocks = price_list(module, batches[0][0], batches[0][2], torch.bfloat16)
    with MemoryTracker(module) as memory, Flops() as flops:
        model = _model(_acquainted(implementation)(module, blocks, BUDGETS[tier][budget][1]), "prepare(...)")
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=LR), []
        torch.manual_seed(seed * 100 + rank)  # for the dropout masks
        for data in batches:
            optimizer.zero_grad()
            loss, logits = loss_of(model, *data)
            logits_dtype = str(logits.dtype)[6:]
            del logits
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {
        "losses": losses,
        "dtypes": sorted({logits_dtype, *_dtypes(model, optimizer)["parameters"]}),
        "peak_bytes": memory.peak.peak_bytes,
        "where": memory.peak.where,
        "flops": flops.total // steps,
        "blocks": blocks,
    }


REFERENCE = {
    "precision": reference_answers.shard_in_float32,
    "recompute": reference_answers.recompute,
    "both": reference_answers.shard_in_float32_only,
}
