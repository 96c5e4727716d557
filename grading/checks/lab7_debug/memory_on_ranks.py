"""Part 3 on the ranks: gradient accumulation under FSDP, and every byte that is live meanwhile."""

import gc
import tracemalloc
from bisect import bisect_right

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from grading.checks.lab7_debug.hang_on_ranks import build, sharded, way
from grading.checks.lab7_debug.returned_values import read
from grading.judge.tensor_projections import project
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.text_batches import batch

N_LAYERS, N_STEPS, MICRO_BATCHES, SAMPLES, SEQ_LEN = 8, 4, 2, 1, 64
_HISTORY = "(loss, right) of each step, a list of pairs"
LR, EPS = 0.1, 1.0  # AdamW with so large an eps takes SGD's steps: it neither hides scale nor magnifies rounding


def steps(seed: int, rank: int, world_size: int, device, n_steps: int) -> list[list[tuple[Tensor, Tensor]]]:
    where = dict(global_batch=SAMPLES * world_size, seq_len=SEQ_LEN, device=device)
    return [
        [batch(seed, step * MICRO_BATCHES + i, rank, world_size, **where) for i in range(MICRO_BATCHES)]
        for step in range(n_steps)
    ]


def _training(seed: int, n_steps: int) -> tuple:
    model = sharded(build(seed, N_LAYERS).to(local_device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=EPS)
    return model, optimizer, steps(seed, dist.get_rank(), dist.get_world_size(), local_device(), n_steps)


def accumulation(implementation, seed: int) -> dict:
    """Run the repaired training; return its history, all updates, and the bytes at the peak and after each step."""
    model, optimizer, mine = _training(seed, N_STEPS)
    before = project(model.named_parameters(), seed)
    with MemoryTracker(model, optimizer) as tracker:
        optimizer.register_step_post_hook(lambda *_: tracker.mark("step"))
        returned = implementation(model, optimizer, mine)
    after = _live_at(tracker)
    return {
        "history": read(returned, _HISTORY, _pairs),
        "way": way(before, project(model.named_parameters(), seed)),
        "peak": tracker.peak.by_category(),
        "moments": moments(tracker),
        "after": after,
    }


def python_memory(implementation, seed: int, n_steps: int) -> dict:
    """Return the bytes that Python and numpy hold after each step of a second training, and how many it reports."""
    implementation(*_training(seed + 1, 1))
    model, optimizer, mine = _training(seed, n_steps)
    after = []

    def look(*_) -> None:
        gc.collect()
        after.append(tracemalloc.get_traced_memory()[0])

    optimizer.register_step_post_hook(look)
    tracemalloc.start()
    try:
        returned = implementation(model, optimizer, mine)
    finally:
        tracemalloc.stop()
    return {"after": after, "reported": len(read(returned, _HISTORY, _pairs))}


def _pairs(history) -> list[list[float]]:
    return [[float(loss), float(right)] for loss, right in history]


def _live_at(tracker: MemoryTracker) -> list[int]:
    """Return the live bytes at each mark."""
    timeline = tracker.timeline()
    times = [seconds for seconds, _ in timeline]
    return [sum(timeline[bisect_right(times, seconds) - 1][1].values()) for seconds, _ in tracker.marks]


def without_figures(model, optimizer, steps) -> list:
    """Train and report nothing: no figure can keep memory here."""
    for micro_batches in steps:
        for tokens, targets in micro_batches:
            logits = model(tokens)
            (F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / len(micro_batches)).backward()
            del logits
        optimizer.step()
        optimizer.zero_grad()
    return []
