"""Judge the bytes that each rank sends: in the constructor, in each forward and in each backward."""

import json
from dataclasses import dataclass
from functools import cache

import torch

from grading.checks.lab9_experts.draws import DTYPES, Case, visits
from grading.checks.lab9_experts.on_ranks import BUDGETS, TOKEN_DIRECTIONS
from grading.checks.lab9_experts.replies_and_errors import ALIKE, drawn, errors, replies_of, rows
from grading.checks.lab9_experts.truth import truth
from grading.judge.session import Session
from grading.judge.verdict import Verdict

NUMBERS_FIRST = "bytes count only if at least half of the tokens have the right outputs: see lab9.outputs."
RIGHT_SHARE = 0.5  # of the tokens of a layer


@dataclass(frozen=True)
class Due:
    """Rows that a rank sends in one pass, and the experts chosen on other ranks that these rows are for."""

    rows: int
    choices: int
    row_bytes: int
    own_rows: int = 0  # for its own tokens; the others answer rows that have come

    @property
    def least(self) -> int:
        return self.rows * self.row_bytes

    @property
    def most(self) -> float:
        return self.least * BUDGETS["row"] + self.choices * BUDGETS["for_each_choice"] + BUDGETS["for_a_pass"]


def judge(s: Session, check: str, points: float) -> Verdict:
    figures = {}
    asked = [*zip(drawn(s), replies_of(s, check), strict=True)]
    for case, replies in reversed(asked):  # the last layer's rows are the longest, and tell most clearly
        if not mostly_right(case, replies):
            return Verdict(check, 0, points, f"{case.name}: {NUMBERS_FIRST}", "", figures)
        cause, shown = fault(case, replies)
        figures |= shown
        if cause:
            return Verdict(check, 0, points, f"{case.name}: {cause}", "", figures)
    cause = "each token goes to each rank once, in the dtype that is asked for, and comes back once."
    return Verdict(check, points, points, cause, "", figures)


def mostly_right(case: Case, replies: list[dict]) -> bool:
    """Tell whether at least half of the tokens have about the right outputs."""
    found = []
    for i, of_ranks in enumerate(truth(case).out):
        for reply, right in zip(replies, of_ranks, strict=True):
            mine = rows(reply["passes"][i]["out"], TOKEN_DIRECTIONS)
            found.append(errors(mine, right, torch.cat(of_ranks))[: len(right)])
    return float((torch.cat(found) <= ALIKE).double().mean()) >= RIGHT_SHARE


def due(case: Case, micro_batch: int) -> list[Due]:
    """Return what each rank may send in a pass: its tokens' rows go out, and those of others go back."""
    return _due(json.dumps(case), micro_batch)


@cache
def _due(written: str, micro_batch: int) -> list[Due]:
    case = Case(*json.loads(written))
    n, row_bytes = len(case.tokens[0]), case.width * DTYPES[case.wire].itemsize
    seen = [visits(case, micro_batch, rank) for rank in range(n)]
    found = []
    for rank in range(n):
        others = [r for r in range(n) if r != rank]
        sent, back = seen[rank][:, others], [seen[r][:, rank] for r in others]
        own_rows = int((sent > 0).sum())
        rows, choices = own_rows + sum(int((v > 0).sum()) for v in back), sent.sum() + sum(v.sum() for v in back)
        found.append(Due(rows, int(choices), row_bytes, own_rows))
    return found


def fault(case: Case, replies: list[dict]) -> tuple[str, dict]:
    """Return the first fault in words ("" if none), and the figures of the rank and pass nearest to its budget."""
    fullest, figures = 0.0, {}
    for rank, reply in enumerate(replies):
        if reply["built"] > BUDGETS["for_a_pass"]:
            return f"the constructor of rank {rank} sends {reply['built']:,.0f} bytes: it may send 4,096.", figures
    for i in range(len(case.tokens)):
        for rank, allowed in enumerate(due(case, i)):
            for name in ("forward", "backward", "evaluation"):
                if name not in replies[rank]["passes"][i]:
                    continue
                sent = replies[rank]["passes"][i][name]
                messages = sent - replies[rank]["passes"][i].get(f"{name} by the store", 0)
                shown = {f"{case.name}: bytes that rank {rank} sends in {name}": (f"{sent:,.0f}", _range(allowed))}
                if messages < allowed.least:
                    words = (
                        f"in {name} rank {rank}'s messages have {messages:,.0f} bytes, and its {allowed.rows} rows "
                        f"have {allowed.least:,}: some rows were not sent, or not as {case.wire}."
                    )
                    return words, shown
                if sent > allowed.most:
                    return _too_much(case, i, rank, name, sent, allowed), shown
                if sent / allowed.most > fullest:
                    fullest, figures = sent / allowed.most, shown
    return "", figures


def _range(allowed: Due) -> str:
    return f"{allowed.least:,} to {allowed.most:,.0f}"


def _too_much(case: Case, i: int, rank: int, name: str, sent: float, allowed: Due) -> str:
    words = f"rank {rank} sends {sent:,.0f} bytes in {name}, {sent / allowed.most:.2f} times what is allowed"
    n, tokens = len(case.tokens[0]), case.tokens[i]
    size = DTYPES[case.dtype].itemsize // DTYPES[case.wire].itemsize
    own, others_rows = ("tokens", "results") if name != "backward" else ("results' gradients", "tokens' gradients")
    answers = allowed.rows - allowed.own_rows
    alike = {
        f"the {own} are sent as {case.dtype}": size * allowed.own_rows + answers,
        f"the {others_rows} are sent as {case.dtype}": allowed.own_rows + size * answers,
        "each token is sent once for each expert, also where two of its experts live on one rank": allowed.choices,
        f"rows are sent as {case.dtype}": size * allowed.rows,
        f"rows are sent once for each expert, as {case.dtype}": size * allowed.choices,
        "all tokens go to all ranks": 2 * (n - 1) * max(tokens),
        f"all tokens go to all ranks, as {case.dtype}": 2 * size * (n - 1) * max(tokens),
    }
    others = {how: Due(n_rows, allowed.choices, allowed.row_bytes) for how, n_rows in alike.items()}
    near = sorted((abs(sent - due.least), how) for how, due in others.items() if due.least <= sent <= due.most)
    return f"{words}: about as much as if {', or if '.join(how for _, how in near[:3])}." if near else f"{words}."
