"""Part 1: judge whether the repaired training ends, and is still the same training.

The truth is computed here, in one process: a step uses all ranks' losses or none of them; every document's loss counts
once.
"""

import math

import torch
from torch import nn

from grading.boxes.rank_launcher_outside import CrewError, ReferenceCrewError
from grading.checks.errors_with_nan import largest
from grading.checks.lab7_debug import hang_training as run
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 1e-3  # relative; another order of sums gives about 1e-6
PADDED_STEPS = (1, 3, 4)  # never a step that ends with a validation


def reference_run(s: Session) -> None:
    s.order_reference("training", **_settings(s)["documents"])


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points for the run with a broken batch, half for the run with an uneven validation set."""
    problems, figures = [], {}
    for name, setting in _settings(s).items():
        try:
            replies = s.order(check, "training", **setting)
        except ReferenceCrewError:
            raise
        except CrewError as error:
            problems.append(_stopped(name, setting, s.tier.world_size, error))
            continue
        cause, seen = _compare(name, replies, setting)
        figures |= seen
        problems += [cause] if cause else []
    earned = points * (2 - len(problems)) / 2
    if not problems:
        cause = "it trains and validates to the end, skips what it has to, and every document counts once."
        return Verdict(check, points, points, cause, "", figures)
    head, _, detail = problems[0].partition("\n")
    return Verdict(check, earned, points, head, detail, figures)


def _settings(s: Session) -> dict[str, dict]:
    """Return two runs: one with a batch without targets, one whose documents can't be divided evenly."""
    n = s.tier.world_size
    padded = [PADDED_STEPS[s.seed % 3], 1 + s.seed % (n - 1)]  # a rank other than 0
    per_round = n * run.BATCH_SIZE
    uneven = (per_round + 1, per_round + 2, n - 1)[s.seed % 3]
    return {
        "batch": dict(seed=s.seed, n_documents=per_round, padded=padded),
        "documents": dict(seed=s.seed, n_documents=uneven, padded=None),
    }


def _stopped(name: str, setting: dict, world_size: int, error: CrewError) -> str:
    what = (
        f"a run where one rank's batch of step {setting['padded'][0]} has no valid target"
        if name == "batch"
        else f"a run with {setting['n_documents']} documents for {world_size} ranks in batches of {run.BATCH_SIZE}"
    )
    head, _, detail = str(error).partition("\n")
    return f"{what} {'still hangs' if error.timed_out else 'fails'}: {head}\n{detail.strip()}"


def _compare(name: str, replies: list[dict], setting: dict) -> tuple[str, dict]:
    n, truth = len(replies), truth_of(setting, len(replies))
    off = max(distance(vector(r["weights"]), vector(truth["weights"])) for r in replies)
    figures = {f"{name}: weights, relative error": (f"{off:.1e}", f"{TOLERANCE:g}")}
    if any(r["skipped"] != truth["skipped"] for r in replies):
        said = replies[next(i for i, r in enumerate(replies) if r["skipped"] != truth["skipped"])]["skipped"]
        return f"the steps {truth['skipped']} had to be skipped, by every rank; a rank reports {said}.", figures
    if off > TOLERANCE:
        return _wrong_weights(off, truth), figures
    if any(sorted(r["validation"]) != sorted(truth["validation"]) for r in replies):
        steps = sorted(map(int, truth["validation"]))
        return f"a validation is due after the steps {steps}, and every rank returns its loss.", figures
    found = {step: [r["validation"][step] for r in replies] for step in truth["validation"]}
    worst = largest(abs(x / truth["validation"][step] - 1) for step, xs in found.items() for x in xs)
    figures[f"{name}: validation loss, relative error"] = (f"{worst:.1e}", f"{TOLERANCE / 10:g}")
    if not worst <= TOLERANCE / 10:
        return _wrong_validation(found, truth, setting), figures
    return _work(name, replies, setting, n, figures), figures


def _wrong_weights(off: float, truth: dict) -> str:
    if math.isinf(off):
        return "weights are not finite, or not those of the whole model: a broken batch went into an update."
    skipped = f" Steps to be skipped: {truth['skipped']}." if truth["skipped"] else ""
    return f"the weights after the run are not those of the right training: an update is missing or altered.{skipped}"


def _wrong_validation(found: dict, truth: dict, setting: dict) -> str:
    step, losses = next(iter(found.items()))
    if max(losses) - min(losses) > 1e-6 * max(losses):
        return "the ranks report different validation losses: each has the mean of its own documents."
    if any(math.isnan(x) for x in losses):
        return "the validation loss is NaN: a rank without documents has divided by zero, and so all have."
    which = "some documents do not count, or count twice, or ranks and batches are averaged as if all were full"
    return (
        f"the validation loss after step {step} is {losses[0]:.5f}, the mean of all {setting['n_documents']} documents "
        f"is {truth['validation'][step]:.5f}: {which}."
    )


def _work(name: str, replies: list[dict], setting: dict, n: int, figures: dict) -> str:
    """Return words if a document skipped the sharded model or a rank did other ranks' work; else an empty string."""
    rounds = len(range(run.EVERY - 1, run.N_STEPS, run.EVERY))
    allowed = rounds * math.ceil(setting["n_documents"] / (n * run.BATCH_SIZE))
    forwards = max(r["forwards"] for r in replies) - run.N_STEPS
    rows = sum(r["rows"] - run.N_STEPS * run.SAMPLES for r in replies)
    figures[f"{name}: forward passes of a rank in validation"] = (f"{forwards}", f"{allowed}")
    if forwards > allowed or rows > allowed * n * run.BATCH_SIZE:
        return (
            f"the loss is right, but a rank makes {forwards} forward passes in validation where {allowed} would do: "
            "the documents are not shared out."
        )
    if rows < rounds * setting["n_documents"]:
        return f"only {rows} documents went through the sharded model: the validation ran on some copy of it."
    return ""


def truth_of(setting: dict, world_size: int) -> dict:
    """Run the same training in this process, on all ranks' batches."""
    seed, padded = setting["seed"], setting["padded"]
    model = run.build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.LR, momentum=0.9)
    everyone = [run.batches(seed, rank, world_size, padded) for rank in range(world_size)]
    documents = run.documents(seed, setting["n_documents"])
    skipped, validation = [], {}
    for step in range(run.N_STEPS):
        losses = torch.stack([model(*mine[step]) for mine in everyone])
        if not torch.isfinite(losses).all():
            skipped.append(step)
            continue
        losses.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), run.MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if step % run.EVERY == run.EVERY - 1:
            with torch.no_grad():
                validation[str(step)] = float(model(documents[:, :-1], documents[:, 1:]))
    return {"skipped": skipped, "validation": validation, "weights": project(model.named_parameters(), seed)}
