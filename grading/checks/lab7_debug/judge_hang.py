"""Part 1: judge whether the repaired training ends, and is still the same training.

The truth is computed here, in one process: a step uses all ranks' losses or none of them; every document's loss counts
once.
"""

import math
import random
from itertools import chain

import torch
from torch import nn

from grading.boxes.rank_launcher_client import RanksFailedError, ReferenceFailedError
from grading.checks.errors_with_nan import largest
from grading.checks.lab7_debug import hang_on_ranks as on_rank
from grading.checks.lab7_debug.judge_forward_passes import judge_passes
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, project, vector
from grading.judge.verdict import Verdict

WAY_TOLERANCE, LOSS_TOLERANCE = 1e-3, 1e-5  # relative; another order of sums gives about 1e-5 and 1e-6
LR, MAX_NORMS = 0.05, (4.5, 2.0, 100.0)  # gradients' norms are 2.2 to 12: some steps are clipped, all, or none
NOT_BEFORE_VALIDATION = (0, 1, 3, 4, 6)  # of 7 steps with a validation after 2 and 5


def reference_run(s: Session) -> None:
    s.order_reference("trainings", seed=s.seed, runs=settings(s)["documents"][:2])


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points for runs with broken batches, half for runs with uneven validation sets."""
    problems, figures = [], {}
    for name, runs in settings(s).items():
        try:
            replies = s.order(check, "trainings", seed=s.seed, runs=runs)
        except ReferenceFailedError:
            raise
        except RanksFailedError as error:
            problems.append(_stopped(name, runs, s.tier.world_size, error))
            continue
        causes, worst = [], {}
        for run, mine in zip(runs, zip(*replies, strict=True), strict=True):
            cause, seen = _compare(name, list(mine), run, s.seed)
            causes += [cause] if cause else []
            worst = {key: max(worst.get(key, 0.0), error) for key, error in seen.items()}
        limits = {"weights": WAY_TOLERANCE, "validation loss": LOSS_TOLERANCE}
        figures |= {f"{name}: {key}, relative error": (f"{e:.1e}", f"{limits[key]:g}") for key, e in worst.items()}
        problems += causes[:1]
    earned = points * (2 - len(problems)) / 2
    if not problems:
        cause = "it trains and validates to the end, skips what it has to, and every document counts once."
        return Verdict(check, points, points, cause, "", figures)
    head, _, detail = problems[0].partition("\n")
    return Verdict(check, earned, points, head, detail, figures)


def settings(s: Session) -> dict[str, list[dict]]:
    """Return the runs by name: two with broken batches, and three whose documents can't be divided evenly."""
    n, draw = s.tier.world_size, random.Random(s.seed)
    steps = draw.sample(NOT_BEFORE_VALIDATION, 3)
    ranks = [draw.randrange(1, n), *draw.choices(range(n), k=2)]
    broken = [list(pair) for pair in zip(steps, ranks, strict=True)]
    batch = dict(n_steps=7, every=3, batch_size=2, n_documents=2 * n, padded=broken[:2], infinite=broken[2:])
    size = draw.choice((2, 3))
    counts = {2 * n * size + 1: size, n - 1: 1, draw.choice((1, n * size + 1, n + n // 2)): 5 - size}
    uneven = dict(n_steps=3, every=draw.choice((2, 3)), padded=[], infinite=[])
    runs = [batch, *(uneven | dict(n_documents=count, batch_size=size) for count, size in counts.items())]
    runs = [run | dict(lr=LR, max_norm=norm) for run, norm in zip(runs, (*MAX_NORMS, MAX_NORMS[0]), strict=False)]
    short = runs[0] | dict(n_steps=2, every=2, padded=[[0, ranks[0]]], infinite=[])
    return {"batch": [short, runs[0]], "documents": runs[1:]}


def _stopped(name: str, runs: list[dict], world_size: int, error: RanksFailedError) -> str:
    if name == "batch":
        broken = sorted(chain(runs[-1]["padded"], runs[-1]["infinite"]))
        steps = ", ".join(str(step) for step, _ in broken)
        what = f"one of two runs in which a rank's loss is not finite, in step 0 and in the steps {steps}"
    else:
        sizes = ", ".join(f"{run['n_documents']} documents in batches of {run['batch_size']}" for run in runs)
        what = f"one of the runs with {sizes} on {world_size} ranks"
    head, _, detail = str(error).partition("\n")
    return f"{what} {'still hangs' if error.timed_out else 'fails'}: {head}\n{detail.strip()}"


def _compare(name: str, replies: list[dict], run: dict, seed: int) -> tuple[str, dict[str, float]]:
    """Return the first problem in words, or an empty string, and the relative errors."""
    truth = truth_of(run, seed, len(replies))
    off = largest(distance(vector(r["way"]), vector(truth["way"])) for r in replies)
    errors = {"weights": off}
    for rank, r in enumerate(replies):
        if r["skipped"] != truth["skipped"]:
            return f"the steps {truth['skipped']} had to be skipped; rank {rank} reports {r['skipped']}.", errors
    special = f"{run['n_steps']} steps and broken batches" if name == "batch" else f"{run['n_documents']} documents"
    where = f"in the run with {special}"
    if off > WAY_TOLERANCE:
        return f"{where}, {_wrong_weights(off, truth, run)}", errors
    due = sorted(map(int, truth["validation"]))
    for rank, r in enumerate(replies):
        if (found := sorted(map(int, r["validation"]))) != due:
            return f"{where}, a validation is due after the steps {due}; rank {rank} returns one for {found}.", errors
    errors["validation loss"] = largest(
        r["validation"][step] / loss - 1 for r in replies for step, loss in truth["validation"].items()
    )
    if errors["validation loss"] > LOSS_TOLERANCE:
        return _wrong_validation(replies, truth["validation"], run), errors
    return judge_passes([r["passes"] for r in replies], due, run), errors


def _wrong_weights(off: float, truth: dict, run: dict) -> str:
    if math.isinf(off):
        return "the weights after the run are not finite, or not those of the whole model."
    words = "the weights after the run are not those of the right training: an update is missing or altered"
    norms = ", ".join(f"{norm:.2f}" for norm in truth["norms"])
    return f"{words}. Norms of the right gradients, of which max_norm is {run['max_norm']:g}: {norms}."


def _wrong_validation(replies: list[dict], truth: dict, run: dict) -> str:
    for step, loss in truth.items():
        losses = [r["validation"][step] for r in replies]
        if largest(x / loss - 1 for x in losses) <= LOSS_TOLERANCE:
            continue
        found = "NaN" if any(map(math.isnan, losses)) else ", ".join(f"{x:.5f}" for x in sorted(set(losses)))
        if not any(map(math.isnan, losses)) and max(losses) - min(losses) > LOSS_TOLERANCE * abs(loss):
            found = f"the ranks report different validation losses after step {step}: {found}"
        else:
            found = f"the validation loss after step {step} is {found}"
        return f"{found}; the mean of all {run['n_documents']} documents is {loss:.5f}."
    return ""


def truth_of(run: dict, seed: int, world_size: int) -> dict:
    """Run the same training in this process, on all ranks' batches."""
    model = on_rank.build(seed)
    before = project(model.named_parameters(), seed)
    optimizer = on_rank.optimizer_of(model, run["lr"])
    everyone = [on_rank.batches(seed, rank, world_size, run) for rank in range(world_size)]
    documents = on_rank.documents(seed, run["n_documents"])
    skipped, validation, norms = [], {}, []
    for step in range(run["n_steps"]):
        if any(step == broken for broken, _ in chain(run["padded"], run["infinite"])):
            skipped.append(step)
            continue
        torch.stack([model(*mine[step]) for mine in everyone]).mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), run["max_norm"])))
        optimizer.step()
        optimizer.zero_grad()
        if step % run["every"] == run["every"] - 1:
            with torch.no_grad():
                validation[str(step)] = float(model(documents[:, :-1], documents[:, 1:]))
    way = on_rank.way(before, project(model.named_parameters(), seed))
    return {"skipped": skipped, "validation": validation, "way": way, "norms": norms}
