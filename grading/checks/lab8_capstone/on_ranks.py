"""Lab 8 on the ranks: the submission gets a model and a job; its step's results, memory and messages are recorded."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grading.checks.lab8_capstone.job import BUDGETS as BUDGETS
from grading.checks.lab8_capstone.job import MODEL, RANKS, SEQ_LEN, SEQUENCES, Job, build_model, draw, job_of
from grading.checks.unwrapped_names import unwrap_names
from grading.judge.tensor_projections import project, share_of_product
from grading.judge.timed_laps import serve_laps
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.text_batches import batch
from shardsim import process_group, slept_computation
from shardsim.cpu_streams import run_ahead

LEARNING_RATE, MOMENTUM = 0.1, 0.9
STEPS, LAPS_OF_A_MODEL = 3, 8
NO_TIME = {"launch_s": 0.0, "sequence_s": 0.0}
unwrapped = unwrap_names(MODEL)


def by_block(model: nn.Module, job: Job):
    """Shard over all ranks, a unit for each block, as torch's FSDP does if nothing is chosen for this cluster."""
    for unit in (*model.blocks, model):
        fully_shard(unit)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def whole_batch_at_once(tokens, targets):
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return whole_batch_at_once


def sequences(seed: int, step: int, rank: int, world_size: int = RANKS):
    """Return one rank's part of a step's batch; with `world_size` 1, all of the batch."""
    return batch(seed, step, rank, world_size, global_batch=SEQUENCES * RANKS, seq_len=SEQ_LEN)


def weights(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters, sorted by the names that they had before any wrapping, torch's or the submission's own."""
    found = [(unwrapped(name), p) for name, p in model.named_parameters()]
    return sorted(found, key=lambda entry: entry[0])


def record_step(implementation, seed: int, facts: dict) -> dict:
    """Return the projected weights after some steps, the peak of the last one, and its bytes on this node's card.

    No network is simulated and nothing is slept: the bytes held must not depend on when a message arrives. Models of
    another job are configured before and after. The first takes a step, and neither may matter.
    """
    job, rank = job_of(facts), dist.get_rank()
    other = draw(seed + 1)["2x4"]
    others = [build_model(job_of(other | NO_TIME), seed + i) for i in (1, 2)]
    step_another = configured(implementation, others[0], job_of(other))
    model = build_model(job_of(facts | NO_TIME), seed)
    shapes = [(name, p.shape) for name, p in weights(model)]
    train_step = configured(implementation, model, job)
    configured(implementation, others[1], job_of(other))
    step_another(*sequences(seed + 1, 0, rank))
    gradients_left: list[str] = []
    *before, last = [sequences(seed, step, rank) for step in range(STEPS)]
    for data in before:
        train_step(*data)
        gradients_left.append(gradient_left(model))
    slept_computation.clear()
    with MemoryTracker(model) as memory, record_traffic() as traffic:
        train_step(*last)
    found = dict(weights(model))
    return {
        "weights": project(weights(model), seed),
        "not_whole": [name for name, shape in shapes if name not in found or found[name].shape != shape],
        "gradients_left": [*gradients_left, gradient_left(model)],
        "peak_bytes": memory.peak.peak_bytes,
        "peak": memory.peak.by_category(),
        "where": memory.peak.where,
        "link_bytes": sum(_leaves_the_node(c, job) for c in traffic.collectives),
        "collectives": dict(traffic.kinds()),
        "computations": len(slept_computation.computations()),
        "reduced_bytes": sum(max(c.input_bytes, c.output_bytes) for c in traffic.collectives if "reduce" in c.kind),
    }


def configured(implementation, model: nn.Module, job: Job):
    """Return the `train_step` that the submission makes. TypeError in one line if it makes none."""
    if not callable(implementation):
        raise TypeError(f"hand in configure, a function of (model, job), not {implementation!r:.80}")
    train_step = implementation(model, job)
    if not callable(train_step):
        raise TypeError(f"configure(model, job) has to return train_step, a function, and returned {train_step!r:.80}")
    return train_step


def gradient_left(model: nn.Module) -> str:
    """Return the name of a parameter whose gradient is neither None nor 0 on this rank; "" if there is none."""
    for name, p in weights(model):
        gradient = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        if gradient is not None and gradient.any():
            return name
    return ""


def line(implementation, facts: dict) -> dict:
    """Return the bytes that the second step of the reference line puts on this node's card."""
    job, rank = job_of(facts), dist.get_rank()
    train_step = implementation(build_model(job_of(facts | NO_TIME), 0), job)
    train_step(*sequences(0, 0, rank))
    with record_traffic() as traffic:
        train_step(*sequences(0, 1, rank))
    return {"link_bytes": sum(_leaves_the_node(c, job) for c in traffic.collectives)}


def _leaves_the_node(c, job: Job) -> float:
    """Return this rank's part of the bytes that a collective puts on the card of its node."""
    network, ranks = job.network, dist.get_process_group_ranks(_resolve_process_group(c.group))
    node = network.node(dist.get_rank())
    if c.kind in ("send", "recv", "store"):
        return float(c.input_bytes)  # to any rank, as the statement says
    load = network.bytes_by_link(c.kind, max(c.input_bytes, c.output_bytes), ranks)
    return load.get(("card", (node, 0), "out"), 0.0) / sum(network.node(r) == node for r in ranks)


def laps(implementation, facts: dict, address: str) -> None:
    """Serve laps of one step each, with a proof of the work in four parts.

    1. Two small weights, which depend on every step so far and on all its sequences.
    2. A projection of this rank's part of all weights, which needs no message.
    3. What the step computed, and for how long.
    4. The gradients that went over the simulated network.

    Training restarts after some laps: from the thirteenth lap on, rounding grows fourfold a lap, and proves nothing.
    """
    job, rank, seeds = job_of(facts), dist.get_rank(), []

    def begin():
        model = build_model(job, 0)
        return model, configured(implementation, model, job)

    model, train_step = begin()

    def lap(order: dict) -> dict:
        nonlocal model, train_step
        if len(seeds) == LAPS_OF_A_MODEL:
            model, train_step = begin()
            seeds.clear()
        seeds.append(order["seed"])
        data = sequences(seeds[-1], 0, rank)
        slept_computation.clear()
        process_group.clear()
        with run_ahead():  # the host queues its work and continues, as with a GPU
            train_step(*data)
        return {
            "seeds": seeds,
            "computations": len(slept_computation.computations()),
            "busy_s": busy_s(slept_computation.computations()),
            "reduced_bytes": sum(c.bytes for c in process_group.collectives() if "reduce" in c.kind),
            "proof": proof(model, seeds[-1]),
            "share": share_of_weights(model, seeds[-1]),
        }

    serve_laps(address, lap)


def busy_s(computations: list[slept_computation.Computation]) -> float:
    """Return the seconds in which a card computes. It computes one thing at a time, so overlaps count once."""
    total_s, until_s = 0.0, 0.0
    for c in sorted(computations, key=lambda c: c.started_s):
        total_s += max(0.0, c.finished_s - max(c.started_s, until_s))
        until_s = max(until_s, c.finished_s)
    return total_s


def proof(model: nn.Module, seed: int) -> list[float]:
    """Return the change of two norms' weights, which began at 1: the last norm's, and that of a drawn block."""
    named = dict(weights(model))
    found = []
    for name in ("norm.weight", f"blocks.{seed % len(model.blocks)}.attention_norm.weight"):
        p = named[name].detach()
        p = p.full_tensor() if isinstance(p, DTensor) else p
        found += (p - 1)[::8].tolist()
    return found


def share_of_weights(model: nn.Module, seed: int) -> dict[str, list[float]]:
    """Return what this rank adds to each weight's product with a cosine: the ranks' sum is the product of the whole.

    The frequency depends on `seed`.
    """
    named = weights(model)
    wave = torch.cos((0.1 + seed % 9973 / 9973) * torch.arange(max(p.numel() for _, p in named)))
    return {name: [share_of_product(p, wave[: p.numel()].view(p.shape))] for name, p in named}


REFERENCE = dict.fromkeys(("record_step", "line", "laps"), by_block)
