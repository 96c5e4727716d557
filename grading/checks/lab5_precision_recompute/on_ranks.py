"""Lab 5 on the ranks: what the submission is asked to do, and what the drills record there."""

import copy
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from grading.checks import random_state_digest
from grading.checks.lab5_precision_recompute import reference_answers
from grading.checks.lab5_precision_recompute.flops import Flops
from grading.checks.lab5_precision_recompute.graders_code_used import functions_of, use_of_graders
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
N_DIRECTIONS = 16  # on which each gradient is projected, so that each can be compared by itself

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


def _own(implementation):
    """Give the answer's code our model classes in place of the notebook's, so that `isinstance` finds ours.

    TypeError if the answer uses the graders' own answers.
    """
    if any(implementation is reference for reference in REFERENCE.values()):
        return implementation
    if name := use_of_graders(implementation):
        raise TypeError(f"your code uses {name} of the graders' own code: import from torch and shardlab only")
    for function in functions_of(implementation):
        names = function.__globals__
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
    """Return what `_train` sees of part 1's model, without dropout."""
    shape = shape_of(seed, tier)
    module, shard = build(seed, shape).to(local_device()), _own(implementation)
    return _train(module, lambda: shard(module), "shard(model)", seed, shape, steps)


def both(implementation, seed: int, tier: str, budget: str, steps: int) -> dict:
    """Return what `_train` sees of part 3's model, and the price list that it was prepared with."""
    shape = shape_of(seed, tier)
    module, prepare = build(seed, shape, DROPOUT).to(local_device()), _own(implementation)
    tokens, _, positions = batch_of(seed, 0, shape, dist.get_rank(), dist.get_world_size())
    blocks = price_list(module, tokens, positions, torch.bfloat16)
    given = copy.deepcopy(blocks)
    trained = _train(
        module, lambda: prepare(module, given, BUDGETS[tier][budget][1]), "prepare(...)", seed, shape, steps
    )
    return trained | {"blocks": blocks}


def _train(module: nn.Module, make: Callable, call: str, seed: int, shape: dict, steps: int) -> dict:
    """Train what `make` makes of the module. Return losses, first logits and gradients, dtypes, bytes and FLOPs."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = [batch_of(seed, step, shape, rank, world_size) for step in range(steps)]  # not counted
    places, shapes = _places(module), {p.shape for p in module.parameters()}
    losses, sent, logits_dtypes, first, gradients = [], [], set(), None, {}
    with MemoryTracker(module) as memory, Flops() as flops:
        model = _model(make(), call)
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
            gradients = gradients or _gradients(places, seed)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            del loss
        held = dict(memory.resident)
    peak = memory.peak
    return {
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
    """Return a step's messages, those of one kind and dtype together."""
    n_bytes = Counter()
    for c in collectives:
        n_bytes[c.kind, c.dtype] += wire_bytes(c, world_size)
    return [{"kind": kind, "dtype": dtype, "bytes": n} for (kind, dtype), n in n_bytes.items()]


def _places(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return where each parameter is found, also when modules around it have been replaced: name -> (owner, name)."""
    split = {name: name.rpartition(".") for name, _ in module.named_parameters()}
    return {name: (module.get_submodule(path), own) for name, (path, _, own) in split.items()}


def _gradients(places: dict[str, tuple[nn.Module, str]], seed: int) -> dict[str, list[float]]:
    """Project every gradient that there is. Neither bytes nor FLOPs of it are counted."""
    with _disable_current_modes():
        found = ((name, getattr(owner, own).grad) for name, (owner, own) in places.items())
        return project(found, seed, N_DIRECTIONS)


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
    choose, plans = _own(implementation), []
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


def recompute(implementation, seed: int, tier: str, plans: list[list[str]], dropout: float) -> list[dict]:
    """Return, for each plan on one rank, the gradients of two steps, and the larger FLOPs and bytes."""
    shape, replies, recompute = shape_of(seed, tier), [], _own(implementation)
    for plan in plans:
        module = build(seed, shape, dropout).to(local_device())
        places = _places(module)
        model = _model(recompute(module, list(plan)), "recompute(model, plan)")
        steps = [_step(model, module, places, seed, step, shape) for step in range(2)]
        most = {key: max(s[key] for s in steps) for key in ("flops", "waiting_bytes", "peak_bytes")}
        fewest = {"fewest_flops": min(s["flops"] for s in steps)}
        replies.append(most | fewest | {key: [s[key] for s in steps] for key in ("gradients", "generator")})
    return replies


def _step(model, module: nn.Module, places: dict, seed: int, step: int, shape: dict) -> dict:
    """Return the gradients, FLOPs, peak bytes, and bytes held before backward, all of the same step."""
    module.zero_grad()
    data = batch_of(seed, step, shape, 0, 1)
    with MemoryTracker(module) as memory, Flops() as flops:
        before = sum(memory.resident.values())
        loss, logits = loss_of(model, *data)
        del logits
        waiting = sum(memory.resident.values()) - before
        loss.backward()
    return {
        "gradients": _gradients(places, seed),
        "generator": random_state_digest.digest(),
        "flops": flops.total,
        "waiting_bytes": waiting,
        "peak_bytes": memory.peak.peak_bytes,
    }


REFERENCE = {  # objects of their own: an answer that imports one of these functions is not the reference
    "precision": partial(reference_answers.shard_in_float32),
    "recompute": partial(reference_answers.recompute),
    "both": partial(reference_answers.shard_in_float32_only),
}
