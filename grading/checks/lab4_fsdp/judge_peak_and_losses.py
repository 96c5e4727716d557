"""Judge training within the memory budget: each rank's peak, losses and gradients compared with torch's DDP's.

On GPUs the reference is checkpointed FSDP, which has DDP's losses and fits: see `on_ranks.reference`.
"""

from functools import partial

from grading.checks.lab4_fsdp import fault_in_gradients_and_steps, on_ranks
from grading.judge.hidden_memory import hidden_bytes, in_words
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_memory
from shardplan.compare_formulas import mib

MIB = 2**20
SPARE_MEMORY = 5 * MIB  # allowed a rank: the model is whole until it is sharded; DDP exceeds the budget by more
CLAIMS = {"peak_bytes": lambda r: sum(r["peak"].values())}
TOLERANCE = 1e-3  # relative, of each loss: another order of sums gives 1e-6, every mistake more than 1e-2


def judge_at(depth: int, s: Session, check: str, points: float) -> Verdict:
    """Judge a model `depth` times as deep as the tier's, within the tier's budget."""
    arguments = dict(tier=s.tier.name, seed=s.seed, depth=depth)
    replies = s.watch(check, "train", **arguments).replies
    worst = max(replies, key=lambda r: sum(r["peak"].values()))
    peak, budget = sum(worst["peak"].values()), on_ranks.BUDGETS[s.tier.name] * MIB
    reference, got = s.watch_reference("train", **arguments).replies, 0
    mine, right = [r["losses"] for r in replies], [r["losses"] for r in reference]
    error = loss_error(mine, right)
    figures = {
        "peak of each rank": (", ".join(mib(sum(r["peak"].values())) for r in replies), mib(budget)),
        "losses beside DDP's, relative difference": (f"{error:.1e}", f"{TOLERANCE:g}"),
    }
    if not peak <= budget:  # of a peak that is no number, both are false
        cause = _too_much(worst)
    elif wrong := fault_in_gradients_and_steps.fault(s, check, depth):
        cause = wrong
    elif error > TOLERANCE:
        cause = which_loss_differs(mine, right)
    elif hidden := hidden_bytes(s, check, "train", CLAIMS, SPARE_MEMORY, **arguments):
        cause = in_words(hidden)
    else:
        cause, got = "it trains within the budget, as DDP would.", points
    if peak <= budget:
        figures |= fault_in_gradients_and_steps.figures(s, check, depth)
    return Verdict(check, got, points, cause, "", figures, picture=_picture(s, replies, worst, reference))


def _picture(s: Session, replies: list[dict], worst: dict, reference: list[dict]) -> str:
    name = "torch's DDP" if s.tier.device == "cpu" else "FSDP, checkpointed"
    steps = {f"yours, rank {replies.index(worst)}": worst["moments"], name: reference[0]["moments"]}
    return of_memory(steps, on_ranks.BUDGETS[s.tier.name] * MIB, f"{on_ranks.STEPS} steps")


judge_fits = partial(judge_at, 1)
judge_larger = partial(judge_at, 2)


def reference_losses(s: Session, depth: int = 1) -> list[list[float]]:
    """Return each rank's losses in the reference's training, which has no memory limit."""
    watched = s.watch_reference("train", tier=s.tier.name, seed=s.seed, depth=depth)
    return [r["losses"] for r in watched.replies]


def loss_error(mine: list[list[float]], right: list[list[float]]) -> float:
    """Return the largest relative difference over ranks and steps; infinity if a loss is NaN."""
    pairs = [(a, b) for m, r in zip(mine, right, strict=True) for a, b in zip(m, r, strict=True)]
    return max(abs(a - b) / b if a == a else float("inf") for a, b in pairs)


def which_loss_differs(mine: list[list[float]], right: list[list[float]]) -> str:
    """Name the first loss that is not the reference's."""
    for step, (losses, due) in enumerate(zip(zip(*mine, strict=True), zip(*right, strict=True), strict=True)):
        for rank, (a, b) in enumerate(zip(losses, due, strict=True)):
            if loss_error([[a]], [[b]]) > TOLERANCE:
                return f"the loss of step {step + 1} on rank {rank} is {a:.4f}, and DDP's is {b:.4f}."
    return ""


def _too_much(worst: dict) -> str:
    held = {name: n for name, n in worst["peak"].items() if n}
    parts = ", ".join(f"{name} {n / MIB:.2f}" for name, n in sorted(held.items(), key=lambda item: -item[1]))
    return f"it runs out of memory: at the peak, in {worst['where']}, are (MiB) {parts}."
