"""Lab 10 on the ranks: what the submission is asked to do, and what the drills record there."""

import base64
import hashlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from grading.checks.lab10_eight_bits import draw, halfway_numbers, independence_of_draws
from grading.checks.lab10_eight_bits.draw import Instance
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.shard_groups import all_gather

N_STEPS, N_CALLS = 10, 24
OF_ANOTHER = 0, 3  # calls and steps before which another engine is used
WIRE_CALLS = 8
CALLS = "first", "second"  # of many draws, of which every element is looked at
POISONS = [("nan", 0), ("inf", 1), ("-inf", 2), ("nan", 3), ("inf", 4), ("-inf", 5)]  # (value, matrix)


class Plain:
    """The program that the team has. Everything travels in float32."""

    def __init__(self, shapes, formats, cuts):
        self.shapes, self.rank, self.n = shapes, dist.get_rank(), dist.get_world_size()
        self.lengths = [last - first for first, last in pairwise(cuts)]

    def gather(self, shard):
        padded = shard.new_zeros(max(self.lengths))
        padded[: len(shard)] = shard
        received = shard.new_empty(self.n * len(padded))
        all_gather(received, padded)
        parts = [part[:length] for part, length in zip(received.chunk(self.n), self.lengths, strict=True)]
        whole = torch.cat(parts).split([rows * columns for rows, columns in self.shapes])
        return [part.view(shape) for part, shape in zip(whole, self.shapes, strict=True)]

    def reduce(self, gradients):
        flat, mine = torch.cat([g.flatten() for g in gradients]), self.lengths[self.rank]
        received = flat.new_empty(self.n * mine)
        dist.all_to_all_single(received, flat, [mine] * self.n, self.lengths)
        return received.view(self.n, mine).sum(0) / self.n


def build(implementation, instance: Instance, seed: int):
    """Build the engine on this rank. Every rank's program starts with the same seed, as in a training."""
    torch.manual_seed(seed)
    return implementation(list(instance.shapes), list(instance.formats), list(instance.cuts))


def own(flat: Tensor, instance: Instance) -> Tensor:
    """Return this rank's part of a flat tensor, as memory of its own."""
    first, last = instance.cuts[dist.get_rank() :][:2]
    return flat[first:last].clone()


def gather(implementation, seed: int) -> list[dict]:
    """Gather the weights of every drawn instance once, each with an engine of its own."""
    replies = []
    for i, instance in enumerate(draw.instances(seed, dist.get_world_size())):
        engine = build(implementation, instance, seed)
        shard = own(draw.flat(draw.weights(instance, seed + i)), instance)
        replies.append(gathered(engine.gather(shard), instance))
    return replies


def gathered(whole, instance: Instance) -> dict:
    """Return the form's fault, a digest of the weights, and on rank 0 the weights."""
    if words := _wrong_form(whole, instance.shapes):
        return {"form": words, "bits": "", "whole": ""}
    flat = draw.flat([w.detach() for w in whole])
    return {"form": "", "bits": _digest(flat), "whole": packed(flat) if dist.get_rank() == 0 else ""}


def _wrong_form(whole, shapes: list[tuple[int, int]]) -> str:
    if not isinstance(whole, list | tuple) or not all(isinstance(w, Tensor) for w in whole):
        return f"`gather` returned {whole!r:.60}: a list of float32 tensors is asked for"
    found = [tuple(w.shape) for w in whole]
    if found != [tuple(shape) for shape in shapes]:
        return f"`gather` returned tensors of the shapes {found!r:.80}, where {shapes!r:.80} are due"
    if other := {str(w.dtype) for w in whole} - {"torch.float32"}:
        return f"`gather` returned tensors of {', '.join(sorted(other))}: float32 is asked for"
    return ""


def another_engine(implementation, seed: int) -> Callable[[], None]:
    """Build an engine for other matrices, and return what calls it: it must not matter to the judged one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    instance = draw.one_instance(seed + 1, n, rows=12, matrices=4)
    engine, shard = build(implementation, instance, seed + 1), own(draw.flat(draw.weights(instance, seed)), instance)

    def call() -> None:
        engine.gather(shard)
        engine.reduce(draw.gradients(instance, seed, rank))

    return call


def steps(implementation, seed: int) -> list[dict]:
    """Gather, reduce and update the shard in place, step by step, with one engine. Another one is used in between."""
    rank, n, call_another = dist.get_rank(), dist.get_world_size(), another_engine(implementation, seed)
    instance = draw.one_instance(seed, n, rows=20)
    engine, whole = build(implementation, instance, seed), draw.weights(instance, seed)
    shard, replies = own(draw.flat(whole), instance), []
    for step in range(N_STEPS):
        if step in OF_ANOTHER:
            call_another()
        reply = gathered(engine.gather(shard), instance)
        gradients = draw.gradients(instance, seed + step, rank)
        before = draw.flat(gradients)
        engine.reduce(gradients)
        reply["shard changed"] = not torch.equal(shard, own(draw.flat(whole), instance))
        reply["gradient changed"] = not torch.equal(draw.flat(gradients), before)
        replies.append(reply)
        whole = draw.updated(whole, seed, step)
        shard.copy_(own(draw.flat(whole), instance))
    return replies


def reduce(implementation, seed: int) -> dict:
    """Reduce the same gradients again and again, with gathers between; then other gradients, then zeros.

    Another engine is built before, and used in between.

    Return the first two results, the sum of all of the same gradients, and the others, or what is wrong with a form.
    A result is copied at once: an engine may use its memory again.
    """
    rank, n, call_another = dist.get_rank(), dist.get_world_size(), another_engine(implementation, seed)
    instance = reduced_instance(seed, n)
    engine = build(implementation, instance, seed)
    shard = own(draw.flat(draw.weights(instance, seed)), instance)
    found = []
    for call in range(N_CALLS + 2):
        if call in OF_ANOTHER:
            call_another()
        if call % 4 == 0:
            engine.gather(shard)
        drawn, poor = seed + (call == N_CALLS), call == N_CALLS + 1
        mean = engine.reduce(draw.gradients(instance, drawn, rank, poor=poor))
        if words := _wrong_slice(mean, len(shard)):
            return {"form": words}
        found.append(mean.detach().double().clone())
    known = {"first": found[0], "second": found[1], "sum": sum(found[:N_CALLS]), "other": found[-2], "zeros": found[-1]}
    return {"form": ""} | {name: packed(t) for name, t in known.items()}


def reduced_instance(seed: int, n: int) -> Instance:
    return draw.one_instance(seed, n, empty=True)


def many(implementation, seed: int) -> dict:
    """Reduce a gradient of many draws whose chances are known. Return how often ranks rounded up.

    Return it for each element in two calls, and for the faint numbers' sum in all calls; and the number of impossible
    means. Return it also for the sum of a call, of many calls with numbers halfway between neighbours.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    instance = independence_of_draws.instance(n)
    engine, begin = build(implementation, instance, seed), instance.cuts[rank]
    given, found, n_off = independence_of_draws.gradients(seed, n), [], 0
    for _ in range(independence_of_draws.N_CALLS):
        mean = engine.reduce([g.clone() for g in given])
        if words := _wrong_slice(mean, instance.cuts[rank + 1] - begin):
            return {"form": words}
        ups, off = independence_of_draws.ups(mean.detach(), begin, seed, n)
        found.append(ups)
        n_off += off
    calls = {name: base64.b64encode(call.numpy().tobytes()).decode() for name, call in zip(CALLS, found, strict=False)}
    faint = independence_of_draws.faint_ups(torch.stack(found).sum(0), begin, seed, n)
    return {"form": "", "faint": faint, "off": n_off} | calls | _halfway(implementation, seed)


def _halfway(implementation, seed: int) -> dict:
    """Return how often ranks rounded up this rank's elements, by call, and the number of impossible means."""
    rank, n = dist.get_rank(), dist.get_world_size()
    instance = halfway_numbers.instance(n)
    engine, begin, found = build(implementation, instance, seed + 1), instance.cuts[rank], []
    for _ in range(halfway_numbers.N_CALLS):
        mean = engine.reduce(halfway_numbers.gradients())
        if words := _wrong_slice(mean, instance.cuts[rank + 1] - begin):
            return {"form": words}
        found.append(halfway_numbers.ups(mean.detach(), begin, n))
    return {"halfway": [up for up, _ in found], "halfway off": sum(off for _, off in found)}


def _wrong_slice(mean, length: int) -> str:
    if not isinstance(mean, Tensor):
        return f"`reduce` returned {mean!r:.60}: a tensor of this rank's elements is asked for"
    if tuple(mean.shape) != (length,) or mean.dtype != torch.float32:
        found = f"{list(mean.shape)} and {mean.dtype}"
        return f"`reduce` returned a tensor of {found}: this rank keeps {length} elements, in float32"
    return ""


def poisoned(implementation, seed: int) -> list[dict]:
    """Put one number that is not finite into one rank's gradients, call by call, with good calls between.

    Return for each call whether the poisoned element is not finite on this rank, and the result of the good call; with
    the first call also the result of one before it.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    instance = draw.one_instance(seed, n, rows=20)
    engine, replies, n_mine = build(implementation, instance, seed), [], instance.cuts[rank + 1] - instance.cuts[rank]
    before = engine.reduce(draw.gradients(instance, seed, rank))
    if words := _wrong_slice(before, n_mine):
        return [{"form": words}]
    before = packed(before.detach().double())
    for call, (value, matrix) in enumerate(POISONS):
        gradients, place = draw.gradients(instance, seed + call, rank), poisoned_place(instance, seed, call)
        if rank == (seed + call) % n:
            draw_matrix = gradients[matrix].view(-1)
            draw_matrix[place - sum(instance.sizes[:matrix])] = float(value)
        bad = engine.reduce(gradients)
        if words := _wrong_slice(bad, n_mine):
            return [{"form": words}]
        mine = place - instance.cuts[rank]
        here = 0 <= mine < len(bad)
        replies.append({"form": "", "here": here, "shown": here and not bool(torch.isfinite(bad[mine]))})
        good = engine.reduce(draw.gradients(instance, seed + call, rank))
        if words := _wrong_slice(good, n_mine):
            return [{"form": words}]
        replies[-1]["good"] = packed(good.detach().double())
        replies[-1]["before"] = before if call == 0 else ""
    return replies


def poisoned_place(instance: Instance, seed: int, call: int) -> int:
    """Return the flat index of the poisoned element."""
    matrix = POISONS[call][1]
    begin, size = sum(instance.sizes[:matrix]), instance.sizes[matrix]
    return begin + (seed * 31 + call * 17) % size


def wire_instance(seed: int, n: int) -> Instance:
    """Return matrices of some 500,000 numbers in shards of almost the same length."""
    return draw.almost_even(draw.one_instance(seed, n, rows=160, matrices=12), n)


def wire(implementation, seed: int, call: str) -> dict:
    """Call `gather` or `reduce` several times; return the messages and bytes of each call on this rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    instance = wire_instance(seed, n)
    engine = build(implementation, instance, seed)
    shard = own(draw.flat(draw.weights(instance, seed)), instance)
    gradients, sent = draw.gradients(instance, seed, rank), []
    for _ in range(WIRE_CALLS):
        with record_traffic() as traffic:
            engine.gather(shard) if call == "gather" else engine.reduce(gradients)
        sent.append([(c.kind, wire_bytes(c, n)) for c in traffic.collectives])
    return {"messages": sent}


def packed(t: Tensor) -> str:
    return base64.b64encode(t.contiguous().numpy().tobytes()).decode()


def unpacked(text: str, dtype: torch.dtype) -> Tensor:
    """Return the tensor that `packed` has packed. ValueError if it is none."""
    kind = {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), kind).copy())


def _digest(t: Tensor) -> str:
    return hashlib.sha256((t + 0.0).numpy().tobytes()).hexdigest()  # + 0.0: -0 and 0 are the same weight


REFERENCE = {"gather": Plain, "reduce": Plain, "wire": Plain}
