"""Time products whose input or result travels between ranks, on a simulated network: lesson 23.

A product takes a given time without using the CPU, as on an accelerator: it sleeps. Its numbers are real.

Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition (ASPLOS 2023).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from shardcourse.experiments.relative_error import relative_error
from shardlab.measure.step_time import time_step

TOKENS, WIDTH, COLUMNS = 64, 128, 128  # tokens of a rank; width of x; columns of the weight on a rank
CHUNK_BYTES = TOKENS * WIDTH * 4
Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """A rank's part of y = x @ w, with x cut by tokens and w by columns, and what one process would compute."""

    x: Tensor  # (TOKENS, WIDTH): this rank's tokens
    w: Tensor  # (WIDTH, COLUMNS): this rank's columns
    dy: Tensor  # (n TOKENS, COLUMNS): gradient of this rank's columns of y, for all tokens
    gathered: list[Tensor]  # every rank's x
    y: Tensor  # (n TOKENS, COLUMNS)
    dx: Tensor  # (TOKENS, WIDTH): summed over ranks
    dw: Tensor  # (WIDTH, COLUMNS)


def problem(seed: int = 0) -> Problem:
    """Return this rank's part of a problem that is the same on all ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    x, w = torch.randn(n * TOKENS, WIDTH), torch.randn(n, WIDTH, COLUMNS)
    dy = torch.randn(n, n * TOKENS, COLUMNS)
    dx = sum(dy[r] @ w[r].t() for r in range(n)).chunk(n)[rank]
    gathered = [part.clone() for part in x.chunk(n)]
    return Problem(gathered[rank], w[rank], dy[rank], gathered, x @ w[rank], dx, x.t() @ dy[rank])


@dataclass(frozen=True)
class Measured:
    """Errors beside one process, and the seconds of the slowest rank by the seconds of a product."""

    errors: tuple[float, ...]
    seconds: dict[float, float]


def measure_forward(ways: Mapping[str, Callable], products_s: Sequence[float], seed: int = 0) -> dict[str, Measured]:
    """Measure ways to compute y. A way is called as `way(x, w, product)`."""
    p = problem(seed)
    results = {name: (way(p.x, p.w, torch.matmul),) for name, way in ways.items()}
    calls = {name: partial(way, p.x, p.w) for name, way in ways.items()}
    return _measure(results, (p.y,), calls, products_s)


def measure_backward(ways: Mapping[str, Callable], products_s: Sequence[float], seed: int = 0) -> dict[str, Measured]:
    """Measure ways to compute dx and dw. A way is called as `way(gathered, w, dy, product)`."""
    p = problem(seed)
    results = {name: way(p.gathered, p.w, p.dy, torch.matmul) for name, way in ways.items()}
    calls = {name: partial(way, p.gathered, p.w, p.dy) for name, way in ways.items()}
    return _measure(results, (p.dx, p.dw), calls, products_s)


def _measure(results: Mapping, expected: Sequence[Tensor], calls: Mapping, products_s: Sequence[float]) -> dict:
    found = {}
    for name, call in calls.items():
        errors = tuple(relative_error(*pair) for pair in zip(results[name], expected, strict=True))
        seconds = {s: min(_seconds(call, s) for _ in range(4)) for s in products_s}
        found[name] = Measured(errors, seconds)
    return found


def _seconds(call: Callable[[Product], object], product_s: float) -> float:
    return time_step(lambda: call(partial(slept_product, product_s)))


def slept_product(seconds: float, a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b after `seconds`."""
    time.sleep(seconds)
    return a @ b
