"""A sample before the referee: what its notebook hands in, and what the verdicts are beside what is due."""

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import nbformat

from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.judge.judge_answers import Referee
from grading.judge.verdict import Verdict
from grading.samples.sample import Sample

RETRIES = 3  # of a check that noise hid, as the executor does


def run_cells(nb: nbformat.NotebookNode) -> dict:
    """A notebook's names after all of its cells but those called experiment..., which no answer needs.

    As in autograding, a cell that raises stops no other.
    """
    names = {"__name__": "submission"}  # of no importable module, as in a notebook
    for cell in nb.cells:
        if cell.cell_type == "code" and not cell.metadata.nbgrader.grade_id.startswith("experiment"):
            with suppress(NotImplementedError, NameError):
                exec(compile(cell.source, cell.metadata.nbgrader.grade_id, "exec"), names)
    return names


def handed_in(sample: Sample) -> dict[str, bytes]:
    """The pickled answers that a sample's notebook hands in, by check."""
    with TemporaryDirectory() as folder, patch.dict(os.environ, {ANSWERS: folder}):
        run_cells(sample.notebook())
        return {answer.name: answer.read_bytes() for answer in Path(folder).iterdir()}


def judge(sample: Sample, answers: dict[str, bytes], referee: Referee) -> list[Verdict]:
    """Of every check but those that are passed over: a timed one takes longest, and so is asked of samples that must
    fail it, and of those called right..."""
    asked = {check: answer for check, answer in answers.items() if not _is_passed_over(check, sample, referee)}
    verdicts = {v.check: v for v in referee.judge(asked)}
    for _ in range(RETRIES):
        for name in [v.check for v in verdicts.values() if v.inconclusive]:
            verdicts |= {v.check: v for v in referee.judge(asked, only=name)}
    return [v for v in verdicts.values() if not _is_passed_over(v.check, sample, referee)]


def _is_passed_over(name: str, sample: Sample, referee: Referee) -> bool:
    check = referee.lab.CHECKS[name]
    full = sample.points.get(name, check.points) == check.points
    return check.timed and full and not sample.name.startswith("right")


def surprises(sample: Sample, verdicts: list[Verdict]) -> list[str]:
    """What the verdicts are not as they should be in: the points, to the half, and the cause that the first of the
    checks that must not be full gives."""
    wrong = [v.text() for v in verdicts if v.inconclusive or v.points != sample.points.get(v.check, v.max_points)]
    stopped_by = next((v for v in verdicts if v.check in sample.points), None)
    if stopped_by and not re.search(sample.cause, stopped_by.cause):
        wrong.append(f"no {sample.cause!r} in: {stopped_by.text()}")
    return wrong
