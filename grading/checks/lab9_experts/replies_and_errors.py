"""Ask a submission's ranks for the drawn cases, and compare rows of projections with the truth."""

import torch
from torch import Tensor

from grading.checks.lab9_experts.draws import Case, cases
from grading.judge.session import Session

ONE_RANK_TIERS_USE = {"world_size": 4, "device": "cpu"}
TOLERANCE = {"float64": 1e-6, "bfloat16": 3e-2}  # by what is sent; of the root mean square of the rows
ALIKE = 5e-2  # this close to a mistake's numbers


def ranks(s: Session) -> dict:
    """Return the tier's ranks and device; four CPU ranks where the tier has one rank."""
    return {} if s.tier.world_size > 1 else ONE_RANK_TIERS_USE


def drawn(s: Session) -> list[Case]:
    return cases(s.seed, ranks(s).get("world_size", s.tier.world_size))


def pace(s: Session) -> None:
    s.order_reference("run", cases=[list(case) for case in drawn(s)], **ranks(s))


def replies_of(s: Session, check: str) -> list[list[dict]]:
    """Return the replies by case, and of each by rank."""
    by_rank = s.order(check, "run", cases=[list(case) for case in drawn(s)], **ranks(s))
    return [list(of_case) for of_case in zip(*by_rank, strict=True)]


def rows(values: list, directions: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, directions)


def errors(mine: Tensor, right: Tensor, size: Tensor) -> Tensor:
    """Return each row's error over the root mean square of the rows in `size`; infinite where it can't be said."""
    if mine.shape != right.shape:
        return torch.full((max(len(right), 1),), torch.inf)
    found = (mine - right).norm(dim=1) / size.norm(dim=1).square().mean().sqrt().clamp(min=1e-30)
    return found.nan_to_num(torch.inf)


def worst(found: Tensor) -> float:
    return float(found.max()) if len(found) else 0.0
