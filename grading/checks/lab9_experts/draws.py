"""Draw what lab 9 needs: where experts live, how many tokens each rank has, and which experts these choose."""

import random
from typing import NamedTuple

import torch
from torch import Tensor

HIDDEN_WIDTH = 16  # of an expert
CLEAR = 1e-3  # the choice of experts must not hang on rounding: between the last chosen and the next score
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


class Case(NamedTuple):
    """A layer and the tokens of some micro-batches. All of it is what JSON can hold."""

    name: str
    seed: int
    top_k: int
    homes: list[int]  # the rank of each expert
    tokens: list[list[int]]  # of each micro-batch: on each rank
    width: int = 24
    skew: float = 0.0  # how far tokens are moved towards an expert
    idle: int = -1  # no token chooses this expert
    dtype: str = "float64"
    wire: str = "float64"
    together: int = 1  # so many micro-batches go forward before the first backward
    order: list[int] = []  # in which the first `together` go backward: not that of forward, nor the reverse
    view: bool = False  # x is a view whose rows don't lie one after the other, and the gradient, too
    steps: bool = False  # a step changes all parameters before each micro-batch but the first


def cases(seed: int, n: int) -> list[Case]:
    """Return the four layers of a grading, for n ranks."""
    draw = random.Random(seed)
    numbers = [draw.randrange(1 << 30) for _ in range(4)]
    idle_homes = homes(draw, n, 3 * n)
    idle = draw.randrange(len(idle_homes))
    others = [rank for rank in range(n) if rank != idle_homes[idle]]
    for e, rank in enumerate(idle_homes):  # a rank whose only expert nobody chooses
        if n > 1 and e != idle and rank == idle_homes[idle]:
            idle_homes[e] = draw.choice(others)
    many_homes = homes(draw, n, 140 + draw.randrange(11))
    growing = sorted(_uneven(draw, n, 3), key=sum)
    order = draw.choice(([1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]))
    alike = _uneven(draw, n, 2)
    alike.append(alike[-1])  # the same numbers of tokens once more, and other tokens
    return [
        Case("two experts a token", numbers[1], 2, homes(draw, n, 2 * n), _uneven(draw, n, 2)),
        Case("one expert a token", numbers[0], 1, many_homes, growing, steps=True),
        Case(
            "a skewed layer",
            numbers[2],
            3,
            idle_homes,
            alike,
            skew=3.0,
            idle=idle,
            together=3,
            order=order,
            view=True,
        ),
        Case(
            "a layer that sends bfloat16",
            numbers[3],
            draw.choice((4, 5)),
            homes(draw, n, 3 * n + draw.randrange(3)),
            [[draw.randint(80, 200) for _ in range(n)]],
            width=256,
            skew=1.0,
            dtype="float32",
            wire="bfloat16",
        ),
    ]


def homes(draw: random.Random, n: int, n_experts: int) -> list[int]:
    """Return the rank of each expert: each rank has at least one, and most have several that are no neighbours."""
    ranks = [*range(n), *(draw.randrange(n) for _ in range(n_experts - n))]
    draw.shuffle(ranks)
    return ranks


def _uneven(draw: random.Random, n: int, micro_batches: int) -> list[list[int]]:
    """Return numbers of tokens that all differ; in each micro-batch another rank has none."""
    without = draw.sample(range(n), min(n, micro_batches)) if n > 1 else [-1] * micro_batches
    return [[0 if rank == none else draw.randint(9, 60) for rank in range(n)] for none in without]


def weights(case: Case, micro_batch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the router (E, D) and all experts' matrices (E, D, H) and (E, H, D), as they are at a micro-batch."""
    draw = torch.Generator().manual_seed(case.seed + (micro_batch if case.steps else 0))
    n_experts, width = len(case.homes), case.width
    shapes = (n_experts, width), (n_experts, width, HIDDEN_WIDTH), (n_experts, HIDDEN_WIDTH, width)
    made = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    router, up, down = (t.to(DTYPES[case.dtype]) for t in made)
    return router / width**0.5, up / width**0.5, down / HIDDEN_WIDTH**0.5


def batch(case: Case, micro_batch: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the rank's tokens and the gradient of its loss by the layer's outputs, both (T, D)."""
    n_tokens, router = case.tokens[micro_batch][rank], weights(case, micro_batch)[0]
    draw = torch.Generator().manual_seed(case.seed + 1000 * micro_batch + rank + 1)
    many = torch.randn((32 if case.idle >= 0 else 4) * n_tokens, case.width, generator=draw, dtype=torch.float64)
    liked = (case.idle + 1) % len(case.homes)
    many = (many + case.skew * router[liked].double() / router[liked].double().norm()).to(router.dtype)
    x = many[_clear(many, router, case)][:n_tokens]
    if len(x) < n_tokens:
        raise ValueError(f"too few clear tokens for {case.name}: draw more")
    return x, torch.randn(n_tokens, case.width, generator=draw, dtype=torch.float64).to(x.dtype)


def _clear(x: Tensor, router: Tensor, case: Case) -> Tensor:
    """Tell of each token whether its choice is far from a tie, and leaves out the idle expert."""
    best = (x.double() @ router.double().T).topk(case.top_k + 1)
    far = best.values[:, -2] - best.values[:, -1] > CLEAR
    return far & (best.indices[:, :-1] != case.idle).all(1)


def choices(case: Case, micro_batch: int, rank: int) -> Tensor:
    """Return the experts (T, k) of the rank's tokens, best first."""
    x, router = batch(case, micro_batch, rank)[0], weights(case, micro_batch)[0]
    return (x.double() @ router.double().T).topk(case.top_k).indices


def visits(case: Case, micro_batch: int, rank: int) -> Tensor:
    """Return for each of the rank's tokens and each rank (T, N) how many of its experts live there."""
    n, chosen = len(case.tokens[0]), choices(case, micro_batch, rank)
    return torch.nn.functional.one_hot(torch.tensor(case.homes)[chosen], n).sum(1)
