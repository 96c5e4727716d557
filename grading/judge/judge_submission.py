"""Judge a submission: run its notebook in a box, let the referee judge the answers, repeat inconclusive checks.

This module does not depend on nbgrader, on queues, or on who handed in.
"""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from grading.boxes.machine_locks import Gpus, gpus_for
from grading.boxes.notebook_runner_client import NotebookRun, NotebookRunner
from grading.boxes.sandbox import Box, Limits, best_box
from grading.judge.find_lab import lab_module
from grading.judge.judge_answers import FALSE_FAIL, Referee
from grading.judge.verdict import Verdict
from shardlab.tier import detect

LACKS_CELLS = "the notebook lacks the cells of"


@dataclass(frozen=True)
class Settings:
    """Settings of the judge; the instructor's `c.RefereeExecutor` has the same names, and explains each."""

    tier: str = "cpu"
    seed: int = 0
    timeout: int = 120
    notebook_timeout: int = 900
    false_fail: float = FALSE_FAIL
    parameters: dict = field(default_factory=dict)
    retries: int = 2
    at_a_time: int = 1

    @property
    def deciding(self) -> dict:
        """Settings that may change a result. The others only change how soon it comes."""
        return {k: v for k, v in vars(self).items() if k not in ("retries", "at_a_time")}


@dataclass(frozen=True)
class Submission:
    """A submission to judge. `checks`: index of a graded cell -> its check. `files`: folder of the files next to it."""

    lab: str
    notebook: NotebookNode
    checks: dict[int, str]
    files: Path


@dataclass(frozen=True)
class Judged:
    """A judged submission. `cells`: each cell's outputs and execution_count; none if the run left none.

    `problem`: why the run did not end normally, if so. `judged_again`: how often noise made us judge a check again.
    """

    cells: list[dict]
    verdicts: list[Verdict]
    problem: str
    seconds: float
    judged_again: int = 0

    @property
    def unclear(self) -> list[Verdict]:
        """Verdicts that decide nothing: the machine was too noisy, or the reference failed."""
        return [v for v in self.verdicts if v.inconclusive]

    @property
    def why_not_graded(self) -> str:
        """Message for a result that is unclear."""
        return "\n".join(["not graded; grade again on a quieter machine:", *(v.text() for v in self.unclear)])


class Judge:
    """A judge of one submission after the other. Its boxes and reference ranks serve them all, until `close`."""

    def __init__(self) -> None:
        self._referees: dict[tuple, Referee] = {}
        self._runner: NotebookRunner | None = None  # holds a box that is ready for the next notebook
        self._gpus: Gpus | None = None

    def judge(self, submission: Submission, settings: Settings) -> Judged:
        """Return one verdict for each check of the lab, whatever the submission does.

        Raises RuntimeError if nothing can be judged: cells of checks are missing, or no box starts.
        """
        if missing := set(lab_module(submission.lab).CHECKS) - set(submission.checks.values()):
            raise RuntimeError(f"{LACKS_CELLS} {', '.join(sorted(missing))}")
        return self._judge(submission, settings)

    def _judge(self, submission: Submission, settings: Settings) -> Judged:
        began = time.monotonic()
        referee = self._referee(submission.lab, settings)
        referee.prepare()
        run = self._run(submission, settings)
        problems = _problems(submission, run)
        verdicts, n_again = {v.check: v for v in referee.judge(run.answers, problems)}, 0
        for _ in range(settings.retries):  # judge inconclusive checks again
            for name in [v.check for v in verdicts.values() if v.inconclusive]:
                verdicts |= {v.check: v for v in referee.judge(run.answers, problems, only=name)}
                n_again += 1
        cells = [{"outputs": cell["outputs"], "execution_count": cell["execution_count"]} for cell in run.cells]
        return Judged(cells, list(verdicts.values()), run.problem, round(time.monotonic() - began, 2), n_again)

    def close(self) -> None:
        """End all boxes and give the GPUs back. The next submission starts new ones."""
        for idle in filter(None, (*self._referees.values(), self._runner, self._gpus)):
            idle.close()
        self._referees, self._runner, self._gpus = {}, None, None

    def _run(self, submission: Submission, settings: Settings) -> NotebookRun:
        if self._runner is None:
            self._runner = NotebookRunner(_box(settings))
            if not self._runner.box.own_namespaces:
                logging.getLogger(__name__).warning("submissions run in %s", self._runner.box.name)
        return self._runner.run(
            submission.notebook,
            str(submission.files),
            parameters={"tier": settings.tier, "seed": settings.seed, **settings.parameters},
            cell_timeout_s=settings.timeout,
            timeout_s=settings.notebook_timeout,
        )

    def _referee(self, lab: str, settings: Settings) -> Referee:
        kind = lab, settings.tier, settings.false_fail / (1 + settings.retries), settings.at_a_time
        if kind not in self._referees:
            self._gpus = self._gpus or gpus_for(detect(settings.tier))
            self._referees[kind] = Referee(lab, settings.tier, box=_box(settings), false_fail=kind[2])
        return self._referees[kind]


JUDGE = Judge()  # one a process: two would wait for each other's GPUs


def _box(settings: Settings) -> Box:
    return best_box(Limits.of_this_machine(settings.at_a_time))


def _problems(submission: Submission, run: NotebookRun) -> dict[str, str]:
    """Return why each graded cell handed nothing in: the run's problem, the first error, or no call of `check`."""
    problems, first = {}, None
    for i in range(len(submission.notebook.cells)):
        ran = run.cells[i] if i < len(run.cells) else {"outputs": [], "execution_count": None}
        errors = [o for o in ran["outputs"] if o.output_type == "error"]
        if errors and first is None:
            first = f"{errors[0].ename}: {errors[0].evalue}".strip(": ")
        if i in submission.checks:
            own = f"{errors[0].ename}: {errors[0].evalue}" if errors else "it did not call check(...)"
            did_not_run = ran["execution_count"] is None
            cause = f"the first error in the notebook was {first}" if first and (errors or did_not_run) else own
            problems[submission.checks[i]] = f"nothing was handed in: {run.problem or cause}"
    return problems
