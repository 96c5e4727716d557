"""What the grader's tests hand in: a lab's samples, and answers made as a notebook would make them."""

import os
import re
from contextlib import suppress
from pathlib import Path

import cloudpickle
import nbformat
import psutil
import pytest

from grading import ANSWERS
from grading.checks import lab_module
from grading.referee import Referee
from grading.samples import Sample, samples
from shardlab.environ import environ

ROOT = Path(__file__).resolve().parents[2]
LAB = "lab2_ddp"  # of the tests that need any lab
LABS = sorted(p.name for p in (ROOT / "solutions").iterdir() if p.is_dir())
RETRIES = 3  # of a check that noise hid, as the executor does
LONGEST_SAMPLE_S = 600


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


def handed_in(sample: Sample, folder: Path) -> dict[str, bytes]:
    """The pickled answers that a sample's notebook hands in, by check."""
    with environ({ANSWERS: str(folder)}):
        run_cells(sample.notebook())
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def pickled(source: str, name: str) -> bytes:
    """What `name` is after `source`, as an answer."""
    names = {"__name__": "submission"}
    exec(source, names)
    return cloudpickle.dumps(names[name])


def class_of(lab: str, quick: tuple[str, ...]) -> list:
    """The lab's samples as pytest parameters: `quick` ones for `make test`, all of them for `make samples`.

    One that hangs is run twice, to a deadline that grows with how busy the machine is.
    """
    later, patient = pytest.mark.samples, pytest.mark.timeout(LONGEST_SAMPLE_S)
    return [pytest.param(s, id=s.name, marks=[patient] if s.name in quick else [patient, later]) for s in samples(lab)]


def try_sample(sample: Sample, answers: dict[str, bytes], referee: Referee) -> None:
    """The referee gives the points that are due, to the half, and the check that finds the mistake names it.

    A timed check takes longest: it is asked of samples that must fail it, and of those called right...
    """
    answers, checks = dict(answers), referee.lab.CHECKS
    due = {name: sample.points.get(name, check.points) for name, check in checks.items()}
    for name, check in checks.items():
        if check.timed and due[name] == check.points and not sample.name.startswith("right"):
            answers.pop(name, None)
            due[name] = 0
    verdicts = {v.check: v for v in referee.judge(answers)}
    for _ in range(RETRIES):
        for name in [v.check for v in verdicts.values() if v.inconclusive]:
            verdicts |= {v.check: v for v in referee.judge(answers, only=name)}
    report = "\n".join(v.text() for v in verdicts.values())
    assert {v.check: v.points for v in verdicts.values()} == due, report
    if sample.points:
        assert re.search(sample.cause, verdicts[next(name for name in checks if name in sample.points)].cause), report


def checks_that_nothing_needs(lab: str) -> set[str]:
    """Those that could be dropped and nobody would notice: no sample is stopped by this one first of all.

    A timed check may be stopped together with the one that names the reason.
    """
    checks = lab_module(lab).CHECKS
    timed = {name for name, check in checks.items() if check.timed}
    stopped_by = [set(s.points) for s in samples(lab) if not s.blank]
    alone = {name for name in checks if {name} in stopped_by or any({name} == s - timed for s in stopped_by)}
    beside = {name for name in timed if any(name in s and len(s) <= 2 for s in stopped_by)}
    return set(checks) - alone - beside


def running(word: str) -> bool:
    """Is there a process with this word in its command line?"""
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if word in (p.info["cmdline"] or [])]
    return any(p.info["status"] != psutil.STATUS_ZOMBIE for p in found)
