"""Check of lesson 4's exercise: ZeRO-1 that gives each rank whole parameters."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

N = 3
SHAPES = ((8, 8), (5, 4), (6, 8), (3,), (7, 4))
STEPS = 2
OPTIONS = {"lr": 0.1, "momentum": 0.9}


class Seen(NamedTuple):
    """Record of one rank after the last step: its memory and its messages."""

    weights: list[Tensor]
    momenta: int  # elements of momentum
    left: int  # gradients that are still there
    kinds: dict[str, int]
    sent: float


def check_whole_zero(optimizer_class: type) -> str:
    """Return in words what is wrong with the reader's class, or that it is right."""
    try:
        ranks = launch(_train, N, optimizer_class, device="cpu", stream=False)
    except LaunchError as error:
        return f"It fails. {str(error).strip().splitlines()[-1]}"
    if None in ranks:
        return "MyWholeZeRO is not written yet."
    return next((words for words in _problems(ranks) if words), _right(ranks))


def owned_elements(sizes: Sequence[int], n: int) -> list[int]:
    """Return each rank's number of elements: largest parameter first, to the rank that has fewest so far."""
    held = [0] * n
    for size in sorted(sizes, reverse=True):
        held[held.index(min(held))] += size
    return held


def _train(optimizer_class: type) -> Seen | None:
    params = _parameters()
    try:
        optimizer = optimizer_class(params, torch.optim.SGD, **OPTIONS)
        for step in range(STEPS):
            for p, g in zip(params, _gradients(step, dist.get_rank()), strict=True):
                p.grad = g
            with record_traffic() as traffic:
                optimizer.step()
                optimizer.zero_grad()
        states = [s["momentum_buffer"] for s in optimizer.optim.state.values() if "momentum_buffer" in s]
    except NotImplementedError:
        return None
    left = sum(p.grad is not None for p in params)
    weights = [p.detach().clone() for p in params]
    return Seen(weights, sum(t.numel() for t in states), left, dict(traffic.kinds()), traffic.wire_bytes(N))


def _parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def _gradients(step: int, rank: int) -> list[Tensor]:
    torch.manual_seed(1 + step * N + rank)
    return [torch.randn(shape) for shape in SHAPES]


def _expected() -> list[Tensor]:
    """Return the weights that one process gets from the mean gradients."""
    params = _parameters()
    optimizer = torch.optim.SGD(params, **OPTIONS)
    for step in range(STEPS):
        by_rank = [_gradients(step, rank) for rank in range(N)]
        for i, p in enumerate(params):
            p.grad = sum(gradients[i] for gradients in by_rank) / N
        optimizer.step()
    return [p.detach() for p in params]


def _problems(ranks: list[Seen]):
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    for i, right in enumerate(_expected()):
        for rank, seen in enumerate(ranks):
            if not torch.allclose(seen.weights[i], right, atol=1e-5):
                yield f"Parameter {i} is wrong on rank {rank}: one process with the mean gradients gets other values."
    held, wanted = [seen.momenta for seen in ranks], owned_elements(sizes, N)
    if sum(held) > sum(sizes):
        yield f"The ranks keep momentum for {sum(held)} elements in all. The model has {sum(sizes)}."
    if sorted(held) != sorted(wanted):
        yield f"The ranks keep momentum for {held} elements. Largest first, to the least loaded rank, gives {wanted}."
    for rank, seen in enumerate(ranks):
        if seen.left:
            yield f"Rank {rank} still holds {seen.left} gradients after zero_grad()."
    share = 2 * 4 * sum(sizes) * (N - 1) / N
    if (sent := ranks[0].sent) > share * 1.01:
        yield f"A rank sends {sent:.0f} bytes: {ranks[0].kinds}. Reduces and broadcasts alone send {share:.0f}."


def _right(ranks: list[Seen]) -> str:
    return f"Right. The ranks keep momentum for {[seen.momenta for seen in ranks]} elements, and send {ranks[0].kinds}."
