"""Lab 6: drawn traces and what is to be read in them, and our repair of the slow program."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from grading.checks.lab6_profile.judge_throughput import PLACE
from grading.checks.lab6_profile.mistakes import FAR, N_CROWDED, N_PLAIN
from grading.references.lab6_traces import draw_trace, figures_of
from grading.references.lab6_wrong_figures import OF_HIDDEN, OF_SHARES, OF_UNIT

MISTAKES = {"shares": OF_SHARES, "hidden": OF_HIDDEN, "unit": OF_UNIT}


def asked(seed: int) -> Iterator[tuple]:
    yield "drawn", seed


def races(seed: int) -> Iterator[tuple[str, dict]]:
    yield "laps", PLACE


@cache
def drawn(seed: int) -> dict:
    """Return traces, the right figures of each, and by kind those of each usual mistake, as (words, of each trace).

    Traces are drawn again until each of the mistakes shows in one of them.
    """
    for attempt in count():
        first = (seed + 10_000 * attempt) * 10
        traces = [
            draw_trace(first + i, plain=i < N_PLAIN, step=1 if i == 0 else None) for i in range(N_PLAIN + N_CROWDED)
        ]
        right = [figures_of(trace) for trace in traces]
        wrong = {kind: [[words, _each(m, traces)] for words, m in known.items()] for kind, known in MISTAKES.items()}
        if all(any(map(_far, right, found)) for known in wrong.values() for _, found in known):
            return {"traces": traces, "right": right} | wrong
    raise AssertionError("count() does not end")


def _each(mistake: Callable[[dict], dict], traces: list[dict]) -> list[dict]:
    """Return the figures of someone who makes this mistake, of each trace."""
    return [figures_of(trace) | mistake(trace) for trace in traces]


def _far(right: dict, wrong: dict) -> bool:
    return any(w != right[k] if k == "unit" else abs(w - right[k]) > FAR for k, w in wrong.items())


def build(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    units = [model, *model.blocks]
    for unit, following in zip(units, units[1:], strict=False):
        unit.set_modules_to_forward_prefetch([following])
    return model


def train_step(model, optimizer, micro_batches) -> float:
    """Run a step that keeps parameters gathered until its end, and reduces each micro-batch's gradients at once."""
    optimizer.zero_grad()
    total = 0.0
    for i, (tokens, targets) in enumerate(micro_batches):
        model.set_reshard_after_backward(i == len(micro_batches) - 1)
        loss = model(tokens, targets) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


ON_RANKS = {drill: (build, train_step) for drill in ("steps", "record_step", "asked", "laps")}
