"""Part 3 on the ranks: gradient accumulation under FSDP, and every byte that is live meanwhile."""

from bisect import bisect_right

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from grading.checks.lab7_debug.hang_training import build, sharded
from grading.checks.lab7_debug.returned_values import read
from grading.judge.tensor_projections import project
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.text_batches import batch

N_LAYERS, N_STEPS, MICRO_BATCHES, SAMPLES, SEQ_LEN = 8, 4, 2, 1, 64


def steps(seed: int, rank: int, world_size: int, device) -> list[list[tuple[Tensor, Tensor]]]:
    where = dict(global_batch=SAMPLES * world_size, seq_len=SEQ_LEN, device=device)
    return [
        [batch(seed, step * MICRO_BATCHES + i, rank, world_size, **where) for i in range(MICRO_BATCHES)]
        for step in range(N_STEPS)
    ]


def accumulation(implementation, seed: int) -> dict:
    """Run the repaired training; return its history, the weights, and the bytes at the peak and after each step."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    model = sharded(build(seed, N_LAYERS).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine = steps(seed, rank, world_size, device)
    with MemoryTracker(model, optimizer) as tracker:
        optimizer.register_step_post_hook(lambda *_: tracker.mark("step"))
        returned = implementation(model, optimizer, mine)
    after = _live_at(tracker)
    return {
        "history": read(returned, "(loss, right) of each step, a list of pairs", _pairs),
        "weights": project(model.named_parameters(), seed),
        "peak": tracker.peak.by_category(),
        "moments": moments(tracker),
        "after": after,
    }


def _pairs(history) -> list[list[float]]:
    return [[float(loss), float(right)] for loss, right in history]


def _live_at(tracker: MemoryTracker) -> list[int]:
    """Return the live bytes at each mark."""
    timeline = tracker.timeline()
    times = [seconds for seconds, _ in timeline]
    return [sum(timeline[bisect_right(times, seconds) - 1][1].values()) for seconds, _ in tracker.marks]


def reference(model, optimizer, steps) -> list:
    history = []
    for micro_batches in steps:
        losses, right = 0.0, 0
        for tokens, targets in micro_batches:
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / len(micro_batches)
            loss.backward()
            losses += loss.item()
            right += int((logits.argmax(-1) == targets).sum())
        optimizer.step()
        optimizer.zero_grad()
        history.append((losses, right))
    return history
