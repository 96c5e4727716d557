"""Lab 5 on the ranks: what the submission is asked to do, and what the drills record there."""

import copy
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from grading.checks.lab5_precision_recompute.drawn_model_and_batches import (
    DROPOUT,
    LR,
    SHAPES,
    batch_of,
    build,
    loss_of,
    shape_of,
)
from grading.checks.lab5_precision_recompute.flops import Flops
from grading.checks.lab5_precision_recompute.give_answer_our_model_classes import in_float32, own, returned_model
from grading.checks.lab5_precision_recompute.gradient_projections import gradients_of, places_of, shares_of_weights
from grading.checks.lab5_precision_recompute.notebook_model_and_price_list import price_list
from grading.checks.lab5_precision_recompute.recompute_on_rank import plain, recompute
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic, wire_bytes

__all__ = ["BUDGETS", "DROPOUT", "SHAPES", "both", "choose", "plain", "precision", "recompute"]
N_TOKENS = 16  # the reply has their logits
NUMBER_BYTES = 8  # of a message of one number; a head's rates are more

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


def precision(implementation, seed: int, tier: str, steps: int) -> dict:
    """Return what `_train` sees of part 1's model, without dropout."""
    shape, shard = shape_of(seed, tier), own(implementation)
    _train_another(lambda model, _: shard(model), "shard(model)", seed + 1, tier)
    module = build(seed, shape).to(local_device())
    return _train(module, lambda: shard(module), "shard(model)", seed, shape, steps)


def both(implementation, seed: int, tier: str, budget: str, steps: int) -> dict:
    """Return what `_train` sees of part 3's model, and the price list that it was prepared with."""
    shape, prepare, n_bytes = shape_of(seed, tier), own(implementation), BUDGETS[tier][budget][1]
    _train_another(lambda model, given: prepare(model, given, n_bytes), "prepare(...)", seed + 1, tier, DROPOUT)
    module = build(seed, shape, DROPOUT).to(local_device())
    tokens, _, positions = batch_of(seed, 0, shape, dist.get_rank(), dist.get_world_size())
    blocks = price_list(module, tokens, positions, torch.bfloat16)
    given = copy.deepcopy(blocks)
    trained = _train(module, lambda: prepare(module, given, n_bytes), "prepare(...)", seed, shape, steps)
    return trained | {"blocks": blocks}


def _train_another(make: Callable, call: str, seed: int, tier: str, dropout: float = 0.0) -> None:
    """Run a step of another model first, with the blocks in another order: what an answer keeps of it must not matter.

    `make` gets the model, and its price list if there is dropout.
    """
    shape = shape_of(seed, tier)
    module = build(seed, shape, dropout).to(local_device())
    tokens, targets, positions = batch_of(seed, 0, shape, dist.get_rank(), dist.get_world_size())
    blocks = price_list(module, tokens, positions, torch.bfloat16) if dropout else []
    loss, _ = loss_of(returned_model(make(module, blocks), call), tokens, targets, positions)
    loss.backward()


def _train(module: nn.Module, make: Callable, call: str, seed: int, shape: dict, steps: int) -> dict:
    """Train what `make` makes of the module. Return losses, first logits and gradients, dtypes, bytes and FLOPs."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = [batch_of(seed, step, shape, rank, world_size) for step in range(steps)]  # not counted
    places, shapes = places_of(module), {p.shape for p in module.parameters()}
    losses, sent, logits_dtypes, first, gradients = [], [], set(), None, {}
    given, norms = shares_of_weights(places), {name: float(p.detach().norm()) for name, p in module.named_parameters()}
    with MemoryTracker(module) as memory, Flops() as flops:
        model = returned_model(make(), call)
        begun = shares_of_weights(places)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        torch.manual_seed(seed * 100 + rank)  # for the dropout masks
        for data in batches:
            with record_traffic() as traffic:
                loss, logits = loss_of(model, *data)
                logits_dtypes.add(str(logits.dtype)[6:])
                first = first or some_logits(logits, shape)
                del logits
                loss.backward()
            sent.append(_summed(traffic.collectives, world_size))
            gradients = gradients or gradients_of(places, seed)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            del loss
        held = dict(memory.resident)
    peak = memory.peak
    return {
        "weights": {name: [given[name] / norms[name], begun[name] / norms[name]] for name in places},
        "losses": losses,
        "logits": first,
        "logits_dtypes": sorted(logits_dtypes),
        "gradients": gradients,
        "dtypes": _dtypes(model, optimizer),
        "shard_bytes": sum(_local(p).nbytes for p in model.parameters()),
        "whole": project(_whole(model, shapes), seed),
        "held": held,
        "sent": sent,
        "peak_bytes": peak.peak_bytes,
        "peak": {name: n for name, n in peak.by_category().items() if n},
        "where": peak.where,
        "flops": flops.total // steps,
    }


def some_logits(logits: Tensor, shape: dict) -> list[float]:
    """Return the logits of some tokens of each sample, evenly spaced up to the last. Their bytes are not counted."""
    every = shape["seq_len"] * shape["samples"] // N_TOKENS
    with _disable_current_modes():
        return logits.detach()[:, every - 1 :: every].float().cpu().flatten().tolist()


def _summed(collectives: list, world_size: int) -> list[dict]:
    """Return a step's messages, those of one kind and dtype together; single numbers, as a flag, by themselves."""
    n_bytes = Counter()
    for c in collectives:
        number = max(c.input_bytes, c.output_bytes) <= NUMBER_BYTES
        n_bytes[c.kind, c.dtype, number] += wire_bytes(c, world_size)
    return [{"kind": k, "dtype": dtype, "number": number, "bytes": n} for (k, dtype, number), n in n_bytes.items()]


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


def choose(implementation, instances: list[list], limit_s: float) -> list:
    """Return the submission's plan for each [blocks, budget_bytes]; in place of an invalid plan, its repr."""
    choose, plans = own(implementation), []
    with _computing_time(limit_s, f"choose took more than {limit_s:g} s of computing time for {len(instances)} cases"):
        for blocks, budget_bytes in instances:
            plan = choose([{w: tuple(p) for w, p in block.items()} for block in blocks], budget_bytes)
            plans.append(plan if plan is None else _as_words(plan))
    return plans


@contextmanager
def _computing_time(limit_s: float, words: str) -> Iterator[None]:
    """Raise TimeoutError with these words once the block has computed for so long; a busy machine does not count."""

    def stop(*_):
        raise TimeoutError(words)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _as_words(plan) -> list[str] | str:
    return list(map(str, plan)) if isinstance(plan, list | tuple) else f"{plan!r:.60}"


REFERENCE = {"precision": in_float32, "both": in_float32, "plain": None}
