"""Part 3: judge whether the numbers stay the same and the bytes do not grow, within today's and tomorrow's budgets.

The right numbers are computed here, in one process; the reference's ranks train without any figures.
"""

import torch
import torch.nn.functional as F

from grading.checks.errors_with_nan import largest
from grading.checks.lab7_debug import memory_on_ranks as on_rank
from grading.checks.lab7_debug.memory_budgets import BUDGETS
from grading.judge.hidden_memory import hidden_bytes, in_words
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, project, vector
from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_memory
from shardplan.compare_formulas import mib

LOSS_TOLERANCE, WAY_TOLERANCE = 1e-3, 1e-2  # relative
GROWTH_BYTES = 1 << 10  # of tensors, over two steps: figures of a micro-batch need 24 bytes a step, its tokens 1,024
PYTHON_BYTES, PYTHON_STEPS = 16 << 10, 6  # a step after the second; 2 to 7 KiB are Python's own, outputs need 128 KiB
MIB = 2**20
DRILL = "accumulation"
SPARE_MEMORY = 3 * MIB  # a rank; right answers left out up to 2.6 on a busy machine, whole gradients are 6
CLAIMS = {"peak_bytes": lambda r: sum(r["peak"].values())}


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points if the peak fits only today's budget; none if the bytes grow from step to step."""
    replies, due = (w.replies for w in (s.watch(check, DRILL, seed=s.seed), s.watch_reference(DRILL, seed=s.seed)))
    budget = {name: size * MIB for name, size in BUDGETS[s.tier.name if s.tier.name in BUDGETS else "cpu"].items()}
    worst = max(replies, key=lambda r: sum(r["peak"].values()))
    peak = sum(worst["peak"].values())
    growth = max(r["after"][-1] - r["after"][min(1, len(r["after"]) - 1)] if r["after"] else 0 for r in replies)
    figures = {
        "peak": (mib(peak), f"{mib(budget['tomorrow_mib'])}; {mib(budget['today_mib'])} for half of the points"),
        "tensors held after the last step, beyond the second": (f"{growth:,d} bytes", f"{GROWTH_BYTES:,d} bytes"),
    }
    steps = {f"yours, rank {replies.index(worst)}": worst["moments"], "without figures": due[0]["moments"]}
    picture = of_memory(steps, budget["tomorrow_mib"], "the run")
    cause = _other_numbers(replies, truth_of(s.seed, len(replies)))
    if cause:
        return Verdict(check, 0, points, cause, "", figures, picture=picture)
    if growth > GROWTH_BYTES:
        cause = f"{growth:,d} bytes more are held after the last step than after the second: any budget ends some day."
        return Verdict(check, 0, points, cause, "", figures, picture=picture)
    later = s.order(check, "python_memory", seed=s.seed, n_steps=PYTHON_STEPS)
    reported = next((r["reported"] for r in later if r["reported"] != PYTHON_STEPS), PYTHON_STEPS)
    if reported != PYTHON_STEPS:
        cause = f"called for a second model, it reports {reported} steps of {PYTHON_STEPS}."
        return Verdict(check, 0, points, cause, "", figures, picture=picture)
    grown = _python_growth([r["after"] for r in later])
    figures["Python and numpy hold more after each step"] = (f"{grown:,.0f} bytes", f"{PYTHON_BYTES:,d} bytes")
    if grown > PYTHON_BYTES:
        cause = f"Python and numpy hold {grown:,.0f} bytes more after each step: any budget ends some day."
        return Verdict(check, 0, points, cause, "", figures, picture=picture)
    if peak <= budget["today_mib"] and (hidden := hidden_bytes(s, check, DRILL, CLAIMS, SPARE_MEMORY, seed=s.seed)):
        return Verdict(check, 0, points, in_words(hidden), "", figures, picture=picture)
    if peak <= budget["tomorrow_mib"]:
        cause = "the same numbers, within tomorrow's budget, at every step."
        return Verdict(check, points, points, cause, "", figures, picture=picture)
    ours = due[0]["peak"]
    more = {name: n - ours.get(name, 0) for name, n in worst["peak"].items()}
    name = max(more, key=more.get)
    cause = (
        f"nothing grows, but {mib(peak)} at the peak are too much for tomorrow's cards. Of {name} there are "
        f"{mib(worst['peak'][name])}, {mib(more[name])} more than need be."
    )
    got = points / 2 if peak <= budget["today_mib"] else 0
    return Verdict(check, got, points, cause, "", figures, picture=picture)


def _python_growth(after: list[list[int]]) -> float:
    """Return the bytes a step, after the second one, of the rank where Python holds most more."""
    return max((held[-1] - held[1]) / (len(held) - 2) if len(held) > 2 else 0.0 for held in after)


def truth_of(seed: int, world_size: int) -> dict:
    """Run the same training in this process, on all ranks' batches. `history`: by rank, (loss, right) of each step."""
    model = on_rank.build(seed, on_rank.N_LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=on_rank.LR, eps=on_rank.EPS)
    everyone = [on_rank.steps(seed, rank, world_size, "cpu", on_rank.N_STEPS) for rank in range(world_size)]
    before = project(model.named_parameters(), seed)
    history: list[list[list[float]]] = [[] for _ in everyone]
    for of_ranks in zip(*everyone, strict=True):
        for mine, micro_batches in zip(history, of_ranks, strict=True):
            mine.append([0.0, 0.0])
            for tokens, targets in micro_batches:
                logits = model(tokens)
                mean = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                loss = mean / len(micro_batches)
                (loss / world_size).backward()
                mine[-1][0] += loss.item()
                mine[-1][1] += int((logits.argmax(-1) == targets).sum())
        optimizer.step()
        optimizer.zero_grad()
    return {"history": history, "way": on_rank.way(before, project(model.named_parameters(), seed))}


def _other_numbers(replies: list[dict], truth: dict) -> str:
    for rank, (mine, right) in enumerate(zip(replies, truth["history"], strict=True)):
        if len(mine["history"]) != len(right):
            return f"rank {rank} reports {len(mine['history'])} steps of {len(right)}."
        if len(mine["after"]) != on_rank.N_STEPS:
            return f"rank {rank}'s optimizer makes {len(mine['after'])} steps of {on_rank.N_STEPS}."
        for step, ((loss, hits), (loss_due, hits_due)) in enumerate(zip(mine["history"], right, strict=True)):
            if not abs(loss / loss_due - 1) <= LOSS_TOLERANCE:
                return f"rank {rank} reports a loss of {loss:.4f} for step {step}, where {loss_due:.4f} is right."
            if not abs(hits - hits_due) <= 1:  # as above: no comparison with NaN holds
                return f"rank {rank} reports {hits:g} tokens predicted right in step {step}, and {hits_due:g} are."
    off = largest(distance(vector(m["way"]), vector(truth["way"])) for m in replies)
    if off > WAY_TOLERANCE:
        return f"the losses are right, but the weights at the end are not: the sum of all updates is {off:.1e} off."
    return ""
