"""Judge the layer's outputs: every token of every rank, in every micro-batch of every drawn case."""

import torch
from torch import Tensor

from grading.checks.lab9_experts.draws import Case, choices, visits
from grading.checks.lab9_experts.on_ranks import TOKEN_DIRECTIONS
from grading.checks.lab9_experts.replies_and_errors import ALIKE, TOLERANCE, drawn, errors, replies_of, rows, worst
from grading.checks.lab9_experts.truth import MISTAKES, NO_ROUTER_GRADIENT, truth
from grading.judge.session import Session
from grading.judge.verdict import Verdict, named_ranks

MOST_NAMED = 4  # experts; more say little


def judge(s: Session, check: str, points: float) -> Verdict:
    figures = {}
    for case, replies in zip(drawn(s), replies_of(s, check), strict=True):
        cause, error = fault(case, replies)
        figures[f"{case.name}: largest error of a token"] = (f"{error:.1e}", f"{TOLERANCE[case.wire]:g}")
        if cause:
            return Verdict(check, 0, points, f"{case.name}: {cause}", "", figures)
    cause = "every token of every rank gets what one process with all experts gives it."
    return Verdict(check, points, points, cause, "", figures)


def fault(case: Case, replies: list[dict]) -> tuple[str, float]:
    """Return what is wrong with the outputs of a case ("" if nothing), and the largest error of a token."""
    right, largest = truth(case).out, 0.0
    asked = [(i, name) for i in range(len(right)) for name in ("out", "evaluated") if name in replies[0]["passes"][i]]
    for i, name in asked:
        of_ranks = right[i]
        mine = [rows(reply["passes"][i][name], TOKEN_DIRECTIONS) for reply in replies]
        found = [errors(a, b, torch.cat(of_ranks)) for a, b in zip(mine, of_ranks, strict=True)]
        largest = max(largest, *map(worst, found))
        bad = [rank for rank, e in enumerate(found) if worst(e) > TOLERANCE[case.wire]]
        if bad:
            under = "under torch.no_grad(): " if name == "evaluated" else ""
            return under + _words(case, i, bad, mine, of_ranks, found), largest
    return "", largest


def _words(case: Case, i: int, bad: list[int], mine: list, right: list, found: list) -> str:
    for words in MISTAKES:
        like = truth(case, words).out[i]
        if words == NO_ROUTER_GRADIENT or _agree(case, like, right):  # a mistake that this case can't show
            continue
        if _agree(case, mine, like):
            return words
    rank = bad[0]
    if _sorted_alike(mine[rank], right[rank]):
        return f"rank {rank} has the right outputs for its tokens, but in another order."
    wrong = found[rank] > TOLERANCE[case.wire]
    where = f"in micro-batch {i + 1}, with {case.tokens[i]} tokens on the ranks, "
    n_wrong, n_tokens = int(wrong.sum()), case.tokens[i][rank]
    words = f"{where}{n_wrong} of rank {rank}'s {n_tokens} tokens are wrong"
    if len(bad) < len(mine):
        words += f", and all of {named_ranks(sorted({*range(len(mine))} - {*bad}))} are right"
    visited = visits(case, i, rank)
    if len(wrong) == n_tokens and 0 < n_wrong < n_tokens:
        if torch.equal(wrong, (visited > 1).any(1)):
            return f"{words}: those that have two experts or more on one rank."
        if torch.equal(wrong, (visited > 0).sum(1) > 1):
            return f"{words}: those whose experts live on more than one rank."
        if shared := _shared_experts(wrong, choices(case, i, rank)):
            on = named_ranks(sorted({case.homes[e] for e in shared}))
            return f"{words}: those that chose one of the experts {', '.join(map(str, shared))}, which live on {on}."
    return f"{words}."


def _shared_experts(wrong: Tensor, chosen: Tensor) -> list[int]:
    """Return experts, none needless, such that a token is wrong if and only if it chose one of them; else []."""

    def explain(experts: list[int]) -> bool:
        return torch.equal(wrong, torch.isin(chosen, torch.tensor(experts)).any(1))

    choosers = {e: (chosen == e).any(1) for e in chosen.unique().tolist()}
    found = [e for e, tokens in choosers.items() if wrong[tokens].all()]
    for e in sorted(found, key=lambda e: int(choosers[e].sum())):
        if explain(rest := [other for other in found if other != e]):
            found = rest
    return found if len(found) <= MOST_NAMED and explain(found) else []


def _agree(case: Case, mine: list[Tensor], like: list[Tensor]) -> bool:
    size = torch.cat(like)
    tolerance = min(ALIKE, 10 * TOLERANCE[case.wire])
    return all(worst(errors(a, b, size)) <= tolerance for a, b in zip(mine, like, strict=True))


def _sorted_alike(mine: Tensor, right: Tensor) -> bool:
    if mine.shape != right.shape or len(right) < 2 or not torch.isfinite(mine).all():
        return False
    distances = torch.cdist(mine, right)
    nearest = distances.argmin(1)
    moved = (nearest != torch.arange(len(right))).any()
    found = (distances.min(1).values < 1e-2 * right.norm(dim=1).mean()).all()
    return bool(moved and found) and len({*nearest.tolist()}) > len(right) // 2
