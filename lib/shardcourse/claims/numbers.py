"""Checks by arithmetic on the pages' own numbers."""

from math import prod

import torch

from shardcourse.claims.claim import Findings
from shardplan.models import shape_of

GB = 1e9


def product(of: list[float], over: float = 1.0) -> Findings:
    return {" x ".join(f"{n:g}" for n in of): prod(of) / over}


def tensor_gb(layers: list[int], seq_len: int, dim: int, itemsize: int = 2) -> Findings:
    """Return the GB of one tensor of shape (seq_len, dim) in each of N layers."""
    return {f"{n} layer{'s' * (n > 1)}, one tensor each": n * seq_len * dim * itemsize / GB for n in layers}


def copies_gb(model: str, copies: dict[str, list[float]]) -> Findings:
    """Return the GB of all parameters, gradients and states. `copies` lists the bytes an element of each copy."""
    n_params = shape_of(model).n_params
    return {f"{words}: {'+'.join(f'{n:g}' for n in each)}": sum(each) * n_params / GB for words, each in copies.items()}


def sequences_a_step(hours: float, steps_per_s: float, sequences: int) -> Findings:
    """Return the sequences a step, from the length of an epoch in sequences and in hours."""
    return {"one epoch": sequences / (hours * 3600 * steps_per_s)}


def steps(hours: float, steps_per_s: float) -> Findings:
    return {f"{hours:g} h at {steps_per_s:g} steps/s": hours * 3600 * steps_per_s}


def bubble(stages: int, micro_batches: list[int]) -> Findings:
    """Check whether a pipeline loses more than a tenth of its time. It loses (p-1) of (m+p-1) micro-batches' time.

    Source: Huang et al. 2019, "GPipe", section 2.3.
    """
    return {f"{m} micro-batches": (stages - 1) / (m + stages - 1) > 0.1 for m in micro_batches}


def split_product_is_gathered(by: list[str]) -> Findings:
    """Check whether two ranks' results, concatenated, equal x W. Each has half of W, cut by columns or by rows."""
    x, w = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    halves = {
        "columns": [x @ part for part in w.chunk(2, dim=1)],
        "rows": [part_x @ part for part_x, part in zip(x.chunk(2, dim=1), w.chunk(2, dim=0), strict=True)],
    }
    joined = {how: torch.cat(halves[how], dim=1) for how in by}
    return {f"cut by {how}": y.shape == (3, 6) and torch.allclose(y, x @ w) for how, y in joined.items()}
