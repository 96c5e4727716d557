"""Judge the gradients: of tokens, of the router after the mean over ranks, and of the experts as they are."""

import torch
from torch import Tensor

from grading.checks.lab9_experts.draws import Case
from grading.checks.lab9_experts.on_ranks import EXPERT_DIRECTIONS, TOKEN_DIRECTIONS
from grading.checks.lab9_experts.replies_and_errors import TOLERANCE, drawn, errors, replies_of, rows, worst
from grading.checks.lab9_experts.truth import NO_ROUTER_GRADIENT, Truth, truth
from grading.judge.session import Session
from grading.judge.verdict import Verdict


def judge(s: Session, check: str, points: float) -> Verdict:
    figures = {}
    for case, replies in zip(drawn(s), replies_of(s, check), strict=True):
        right = truth(case)
        found = {"router": router(right, replies), "experts": experts(case, right, replies)}
        found["tokens"] = tokens(right, replies)
        for what, e in found.items():
            whose = "router's" if what == "router" else f"{what}'"
            figures[f"{case.name}: error of the {whose} gradients"] = f"{worst(e):.1e}", f"{TOLERANCE[case.wire]:g}"
        wrong = [what for what, e in found.items() if worst(e) > TOLERANCE[case.wire]]
        if wrong:
            cause = _words(case, right, replies, wrong)
            return Verdict(check, 0, points, f"{case.name}: {cause}", "", figures)
    cause = "tokens, router and experts have the gradients of one process with all experts."
    return Verdict(check, points, points, cause, "", figures)


def router(right: Truth, replies: list[dict]) -> Tensor:
    return errors(rows(replies[0]["router"], EXPERT_DIRECTIONS), right.router, right.router)


def experts(case: Case, right: Truth, replies: list[dict]) -> Tensor:
    """Return the error of each expert's two matrices, in the order of ranks."""
    found = []
    for rank, reply in enumerate(replies):
        mine = [e for e, home in enumerate(case.homes) if home == rank]
        for name in ("up", "down"):
            whole = getattr(right, name)
            found.append(errors(rows(reply[name], EXPERT_DIRECTIONS), whole[mine], whole))
    return torch.cat(found)


def tokens(right: Truth, replies: list[dict]) -> Tensor:
    found = []
    for i, of_ranks in enumerate(right.x):
        for rank, theirs in enumerate(of_ranks):
            mine = rows(replies[rank]["passes"][i]["x"], TOKEN_DIRECTIONS)
            found.append(errors(mine, theirs, torch.cat(of_ranks)))
    return torch.cat([e for e in found if len(e)])


def _words(case: Case, right: Truth, replies: list[dict], wrong: list[str]) -> str:
    tolerance = 5 * TOLERANCE[case.wire]
    detached, n = truth(case, NO_ROUTER_GRADIENT), len(replies)
    if "router" in wrong and (
        any("router" in reply["none"] for reply in replies) or worst(router(detached, replies)) <= tolerance
    ):
        return NO_ROUTER_GRADIENT
    for what, error_of in (
        ("experts", lambda truth: experts(case, truth, replies)),
        ("router", lambda truth: router(truth, replies)),
        ("tokens", lambda truth: tokens(truth, replies)),
    ):
        if what in wrong:
            for factor, words in _factors(n).items():
                if worst(error_of(_times(right, factor))) <= tolerance:
                    return f"the gradients of the {what} are {words} the right ones."
    if wrong == ["experts"] and (words := _by_batch(case, right, replies, tolerance)):
        return words
    rest = [what for what in ("router", "experts", "tokens") if what not in wrong]
    words = f"wrong are the gradients of {' and '.join(f'the {what}' for what in wrong)}"
    return f"{words}; those of {' and '.join(f'the {what}' for what in rest)} are right." if rest else f"{words}."


def _factors(n: int) -> dict[float, str]:
    """Return factors that are usual mistakes, in words."""
    return {
        float(n): f"{n} times, the number of ranks,",
        1 / n: f"1/{n}, one over the number of ranks, of",
        -1.0: "-1 times",
        0.0: "0 times: they are missing, not",
        float(n * n): f"{n * n} times, the square of the number of ranks,",
    }


def _times(right: Truth, factor: float) -> Truth:
    """Return the truth with all gradients times the factor. A factor of 0 keeps the size that errors are taken by."""
    x = [[factor * t for t in of_ranks] for of_ranks in right.x]
    return Truth(right.out, x, *(factor * t for t in (right.router, right.up, right.down)))


def _by_batch(case: Case, right: Truth, replies: list[dict], tolerance: float) -> str:
    """Say whether the experts' gradients are right but for micro-batches that don't add up."""
    if len(case.tokens) < 2:
        return ""
    n = len(replies)
    first = truth(case._replace(tokens=case.tokens[:1]))
    last = Truth([], [], *(getattr(right, f) - getattr(first, f) for f in ("router", "up", "down")))
    for a, b, words in (
        (0.0, 1.0, "only the last micro-batch counts."),
        (1.0, 0.0, "only the first micro-batch counts."),
        (1 / n, 1.0, "each backward divides by the number of ranks what earlier micro-batches have left there, too."),
    ):
        mixed = (a * getattr(first, f) + b * getattr(last, f) for f in ("router", "up", "down"))
        if worst(experts(case, Truth([], [], *mixed), replies)) <= tolerance:
            return f"in the gradients of the experts {words}"
    return ""
