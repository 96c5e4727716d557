"""Part 2 on one rank: two steps of the model by each plan, and of the one that keeps all."""

from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack

from torch import nn

from grading.checks import random_state_digest
from grading.checks.lab5_precision_recompute.drawn_model_and_batches import batch_of, build, loss_of, shape_of
from grading.checks.lab5_precision_recompute.flops import Flops
from grading.checks.lab5_precision_recompute.give_answer_our_model_classes import own, returned_model
from grading.checks.lab5_precision_recompute.gradient_projections import gradients_of, places_of
from grading.checks.lab5_precision_recompute.notebook_model_and_price_list import price_list
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker


def recompute(implementation, seed: int, tier: str, plans: list[list[str]], dropout: float) -> list[dict]:
    """Return, for each plan on one rank, the gradients of two steps, and the larger FLOPs and bytes."""
    shape, replies, recompute = shape_of(seed, tier), [], own(implementation)
    for plan in plans:
        module = build(seed, shape, dropout).to(local_device())
        places = places_of(module)
        model = returned_model(recompute(module, list(plan)), "recompute(model, plan)")
        steps = [_step(model, module, places, seed, step, shape) for step in range(2)]
        most = {key: max(s[key] for s in steps) for key in ("flops", "waiting_bytes", "peak_bytes")}
        fewest = {"fewest_flops": min(s["flops"] for s in steps)}
        replies.append(most | fewest | {key: [s[key] for s in steps] for key in ("gradients", "generator")})
    return replies


def plain(implementation, seed: int, tier: str, dropout: float) -> dict:
    """Return the same of the model that keeps all, the blocks' price list, and the peak bytes of each part of a step.

    The parts are forward and loss, what follows the blocks going backward, and each block going backward, last first.
    `implementation` is not used.
    """
    shape = shape_of(seed, tier)
    module = build(seed, shape, dropout).to(local_device())
    places = places_of(module)
    with ExitStack() as hooks:
        marks: list[Callable[[str], None]] = []  # of the step that runs
        for block in reversed(module.blocks):
            hooks.callback(block.register_full_backward_pre_hook(lambda *_: marks[-1]("block")).remove)
        steps = [_step(module, module, places, seed, step, shape, marks) for step in range(2)]
    tokens, _, positions = batch_of(seed, 0, shape, 0, 1)
    blocks = price_list(module, tokens, positions)  # afterwards: it draws masks, too
    parts = [max(peaks) for peaks in zip(*(s["parts"] for s in steps), strict=True)]
    most = {key: max(s[key] for s in steps) for key in ("flops", "waiting_bytes", "peak_bytes")}
    both = {key: [s[key] for s in steps] for key in ("gradients", "generator")}
    return most | both | {"parts": parts, "blocks": blocks}


def _step(model, module: nn.Module, places: dict, seed: int, step: int, shape: dict, marks: list | None = None) -> dict:
    """Return the gradients, FLOPs, peak bytes, and bytes held before backward, all of the same step.

    `marks` gets the tracker's `mark`, whose calls divide the step into `parts`.
    """
    module.zero_grad()
    data = batch_of(seed, step, shape, 0, 1)
    with MemoryTracker(module) as memory, Flops() as flops:
        if marks is not None:
            marks.append(memory.mark)
        before = sum(memory.resident.values())
        loss, logits = loss_of(model, *data)
        del logits
        waiting = sum(memory.resident.values()) - before
        memory.mark("backward")
        loss.backward()
    return {
        "parts": _peaks_between_marks(memory),
        "gradients": gradients_of(places, seed),
        "generator": random_state_digest.digest(),
        "flops": flops.total,
        "waiting_bytes": waiting,
        "peak_bytes": memory.peak.peak_bytes,
    }


def _peaks_between_marks(memory: MemoryTracker) -> list[int]:
    """Return the most bytes that were live before the first mark, and after each."""
    begins = [seconds for seconds, _ in memory.marks]
    peaks = [0] * (len(begins) + 1)
    for seconds, now in memory.timeline():
        part = bisect_right(begins, seconds)
        peaks[part] = max(peaks[part], sum(now.values()))
    return peaks
