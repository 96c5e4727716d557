"""Draw what a grading asks: matrices, the format of each, where shards begin, weights, and gradients."""

import random
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

N_INSTANCES = 12  # of one gather each; in every third, borders lie between rows
FAINT = 1e-16  # what some groups are multiplied by: a constant in a scale would show there


class Instance(NamedTuple):
    """Matrices, laid end to end in one flat tensor. Rank r keeps elements cuts[r] to cuts[r + 1], without the last."""

    shapes: list[tuple[int, int]]
    formats: list[str]  # of each matrix: "tensor" for one scale, "row" for a scale a row
    cuts: list[int]

    @property
    def sizes(self) -> list[int]:
        return [rows * columns for rows, columns in self.shapes]

    @property
    def group_sizes(self) -> list[int]:
        """Numbers that share a scale, group by group, in the order of the flat tensor."""
        groups = []
        for (rows, columns), format in zip(self.shapes, self.formats, strict=True):
            groups += [columns] * rows if format == "row" else [rows * columns]
        return groups

    @property
    def row_borders(self) -> list[int]:
        """Elements at which a row begins, and the number of all elements."""
        return list(accumulate((columns for rows, columns in self.shapes for _ in range(rows)), initial=0))

    @property
    def cuts_a_row(self) -> bool:
        return not set(self.cuts) <= set(self.row_borders)


def instances(seed: int, n_ranks: int) -> list[Instance]:
    """Draw the instances of `lab10.scales`. Where borders cut rows, a rank keeps nothing: the first, the last, ..."""
    draw, ranks = random.Random(seed), [0, n_ranks - 1, *range(1, n_ranks - 1)]
    empty = [ranks[i % len(ranks)] if i % 3 else None for i in range(N_INSTANCES)]
    return [_instance(draw, n_ranks, between_rows=i % 3 == 0, empty=rank) for i, rank in enumerate(empty)]


def one_instance(seed: int, n_ranks: int, rows: int = 40, matrices: int = 6, empty: bool = False) -> Instance:
    """Draw an instance of larger matrices, cut anywhere, with both formats. With `empty` a rank keeps nothing."""
    rank = seed % n_ranks if empty else None
    return _instance(random.Random(seed), n_ranks, rows=rows, matrices=matrices, empty=rank)


def almost_even(instance: Instance, n_ranks: int) -> Instance:
    """Return the same matrices in shards whose lengths differ by some elements, and whose borders cut rows."""
    n = sum(instance.sizes)
    return instance._replace(cuts=[0, *(n * r // n_ranks + 7 * r + 1 for r in range(1, n_ranks)), n])


def _instance(
    draw: random.Random,
    n_ranks: int,
    between_rows: bool = False,
    empty: int | None = None,
    rows: int = 9,
    matrices: int = 5,
) -> Instance:
    shapes = [(draw.randint(rows // 2, rows), draw.randint(3 * rows // 2, 3 * rows)) for _ in range(matrices)]
    if rows < 10:  # the smallest matrices that there are
        shapes[draw.randrange(matrices)] = draw.choice([(1, 1), (1, draw.randint(2, 40)), (draw.randint(2, 20), 1)])
    formats = ["tensor", "row", *(draw.choice(("tensor", "row")) for _ in range(matrices - 2))]
    draw.shuffle(formats)
    whole = Instance(shapes, formats, [])
    n, borders = sum(whole.sizes), whole.row_borders[1:-1]
    possible = borders if between_rows else sorted({*range(1, n)} - {*borders})
    cuts = draw.sample(possible, n_ranks - 1)
    if cuts and not between_rows and not _inside_scaled_rows(whole, cuts):  # else amaxes of own rows would do
        cuts[0] = draw.choice(_inside_scaled_rows(whole, possible) or cuts[:1])
    cuts.sort()
    if empty is not None and len(cuts) > 1:
        borders = [0, *cuts]
        if empty < len(cuts):
            cuts[empty] = borders[empty]
        else:
            cuts[-1] = n
    return whole._replace(cuts=[0, *cuts, n])


def _inside_scaled_rows(instance: Instance, elements: list[int]) -> list[int]:
    """Return those of the elements, none of which begins a row, that lie in matrices with a scale for each row."""
    begins = accumulate(instance.sizes, initial=0)
    spans = [(b, b + size) for b, size, f in zip(begins, instance.sizes, instance.formats, strict=False) if f == "row"]
    return [e for e in elements if any(first < e < last for first, last in spans)]


def weights(instance: Instance, seed: int) -> list[Tensor]:
    """Draw float32 matrices: each has one number far above its others, and some rows are far above the others.

    The largest number is negative or positive. Some rows are zero, and so is one matrix. Another one is far below
    all others.
    """
    whole = [_matrix(shape, format, seed * 1000 + i) for i, (shape, format) in enumerate(_matrices(instance))]
    whole[seed % len(whole)] *= 0
    whole[(seed + 1) % len(whole)] *= FAINT
    return whole


def gradients(instance: Instance, seed: int, rank: int, poor: bool = False) -> list[Tensor]:
    """Draw the gradients of a rank: of every matrix a third of the numbers are far below the others, a quarter mostly
    even further, and matrix 2 is far below the others.

    Matrices 0, 3, 6, ... are the same on all ranks. Of 1, 4, ... only one rank has any that is not zero. With `poor`
    all are zero.
    """
    found = []
    for i, (shape, _) in enumerate(_matrices(instance)):
        alike, alone = i % 3 == 0, i % 3 == 1
        draw = _generator(seed * 1000 + 100 * i + (0 if alike else 1 + rank))
        g = torch.randn(shape, generator=draw) * 0.01
        kind, power = torch.rand(shape, generator=draw), torch.rand(shape, generator=draw)
        g = torch.where(kind < 1 / 3, g * 1e-5, g)
        g = torch.where(kind > 3 / 4, g * 10 ** (5 * power.square() - 8.5), g)
        g = g * FAINT if i == 2 else g
        if shape[0] > 2:
            g[torch.randint(shape[0], (1,), generator=draw)] = 0
        if poor or (alone and rank != (seed + i) % (len(instance.cuts) - 1)):
            g = torch.zeros(shape)
        found.append(g)
    return found


def updated(whole: list[Tensor], seed: int, step: int) -> list[Tensor]:
    """Return the weights after an update. In every third step all numbers but the largest of each row shrink; in others
    the largest number of every row and matrix moves."""
    if step % 3 == 2:
        draw = _generator(seed * 1000 + 17 * step)
        shrunk = [w * (0.5 + torch.rand(w.shape, generator=draw) / 2) for w in whole]
        tops = [w.abs() == w.abs().amax(1, keepdim=True) for w in whole]
        return [torch.where(top, w, less) for top, w, less in zip(tops, whole, shrunk, strict=True)]
    found = []
    for i, w in enumerate(whole):
        draw = _generator(seed * 1000 + 17 * step + i)
        factors = 2.0 ** (torch.rand(len(w), 1, generator=draw) * 6 - 3)
        found.append(w.roll(step % len(w), dims=0) * factors + 1e-3 * torch.randn(w.shape, generator=draw))
    return found


def flat(matrices: list[Tensor]) -> Tensor:
    return torch.cat([m.flatten() for m in matrices])


def _matrices(instance: Instance):
    return list(zip(instance.shapes, instance.formats, strict=True))


def _matrix(shape: tuple[int, int], format: str, seed: int) -> Tensor:
    draw = _generator(seed)
    w = torch.randn(shape, generator=draw) * 0.02
    if format == "row":  # rows between which a scale of the whole matrix would lose most numbers
        w *= 2.0 ** torch.randint(-10, 11, (shape[0], 1), generator=draw)
        w.scatter_(1, torch.randint(shape[1], (shape[0], 1), generator=draw), 6 * w.abs().amax(1, keepdim=True))
        w *= torch.randint(2, (shape[0], 1), generator=draw) * 2 - 1
        if shape[0] > 1:
            w[torch.randint(shape[0], (1,), generator=draw)] = 0
    else:
        place = torch.randint(w.numel(), (1,), generator=draw)
        w.view(-1)[place] = 8 * w.abs().max() * (torch.randint(2, (1,), generator=draw) * 2 - 1)
    return w


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
