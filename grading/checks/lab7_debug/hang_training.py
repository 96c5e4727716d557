"""Part 1 on the ranks: a training under FSDP with a guard against broken batches and a validation."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.checks.lab7_debug.returned_values import read
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

N_STEPS, EVERY, SAMPLES, SEQ_LEN, BATCH_SIZE = 6, 3, 2, 24, 2
LR, MAX_NORM = 0.5, 0.3  # chosen so that every step is clipped


def build(seed: int, n_layers: int = 2) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(preset("1M", n_layers=n_layers))


def sharded(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def batches(seed: int, rank: int, world_size: int, padded: list[int] | None, device="cpu") -> list[tuple]:
    """Return this rank's batch of every step. `padded`: the step and the rank whose targets do not count."""
    found = []
    for step in range(N_STEPS):
        tokens, targets = batch(
            seed, step, rank, world_size, global_batch=SAMPLES * world_size, seq_len=SEQ_LEN, device=device
        )
        found.append((tokens, torch.full_like(targets, -100) if (step, rank) == tuple(padded or ()) else targets))
    return found


def documents(seed: int, count: int) -> Tensor:
    tokens, targets = batch(seed, 1_000, 0, 1, global_batch=count, seq_len=SEQ_LEN)
    return torch.cat([tokens, targets[:, -1:]], 1)


def training(implementation, seed: int, n_documents: int, padded: list[int] | None) -> dict:
    """Run the repaired training; return its result, the weights, and the calls and rows of the sharded model."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    model = sharded(build(seed).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    forwards: list[int] = []  # rows of each call
    model.register_forward_pre_hook(lambda module, args: forwards.append(len(args[0])))
    returned = implementation(
        model,
        optimizer,
        batches(seed, rank, world_size, padded, device),
        documents(seed, n_documents).to(device),
        batch_size=BATCH_SIZE,
        every=EVERY,
        max_norm=MAX_NORM,
    )
    skipped, validation = read(returned, "(skipped, validation), a list and a dictionary", _skipped_and_validation)
    return {
        "skipped": skipped,
        "validation": validation,
        "weights": project(model.named_parameters(), seed),
        "forwards": len(forwards),
        "rows": sum(forwards),
    }


def _skipped_and_validation(returned) -> tuple[list[int], dict[str, float]]:
    skipped, validation = returned
    return [int(step) for step in skipped], {str(step): float(loss) for step, loss in validation.items()}


def reference(model, optimizer, batches, documents, batch_size, every, max_norm):
    """Train with our own repair: a rank without documents left takes part with one that does not count."""
    skipped, validation = [], {}
    for step, (tokens, targets) in enumerate(batches):
        loss = model(tokens, targets)
        broken = (~torch.isfinite(loss.detach())).float()
        dist.all_reduce(broken)
        if broken > 0:
            skipped.append(step)
            continue
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step % every == every - 1:
            validation[step] = _validation(model, documents, batch_size)
    return skipped, validation


@torch.no_grad()
def _validation(model, documents: Tensor, batch_size: int) -> float:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sums = documents.new_zeros(2, dtype=torch.float64)
    for i in range(math.ceil(len(documents) / (batch_size * world_size))):
        some = documents[rank::world_size][i * batch_size : (i + 1) * batch_size]
        logits = model((some if len(some) else documents[:1])[:, :-1])[: len(some)]
        losses = F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="sum")
        sums += torch.stack([losses, torch.tensor(float(some[:, 1:].numel()), device=losses.device)])
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])
