"""What the grader's tests hand in: a lab's samples, and answers made as a notebook would make them."""

from pathlib import Path

import cloudpickle
import psutil
import pytest

from grading.checks import lab_module
from grading.referee import Referee
from grading.samples import Sample, samples
from grading.samples.trial import judge, surprises

ROOT = Path(__file__).resolve().parents[2]
LAB = "lab2_ddp"  # of the tests that need any lab
LABS = sorted(p.name for p in (ROOT / "solutions").iterdir() if p.is_dir())
LONGEST_SAMPLE_S = 600


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
    """The referee gives the points that are due, and the check that finds the mistake names it."""
    assert surprises(sample, judge(sample, answers, referee)) == []


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
