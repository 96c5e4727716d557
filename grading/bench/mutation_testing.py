"""Test a lab's checks by mutation: judge the solution with one small change made by a program, for each such change.

A mutation that no check sees is a hole in the checks, or it is equivalent: it changes nothing. Equivalent ones stand in
`grading/checks/<lab>/equivalent_mutations.toml`: the mutation's key = why nobody can see it.
"""

import argparse
import json
import re
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from grading.gradebook.nbgrader_classroom import ROOT
from grading.judge.judge_answers import Referee
from grading.judge.verdict import Verdict
from grading.samples.automatic_mutations import Mutation, mutations_of
from grading.samples.sample import Sample
from grading.samples.trial import RETRIES, handed_in

NOTEBOOK_S = 120  # for the cells that no judge runs: a mutation may loop for ever
_CLASS_ID = re.compile(rb"[0-9a-f]{32}")  # drawn anew each time that a class of the notebook is pickled


def equivalent(lab: str) -> dict[str, str]:
    """Return the mutations of a lab that change nothing: key -> why."""
    file = ROOT / "grading" / "checks" / lab / "equivalent_mutations.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def survivors(lab: str, mutations: list[Mutation], at_a_time: int = 1) -> dict[str, str]:
    """Judge the mutations of a lab. Return those that no check saw: key -> what the checks said."""
    with ProcessPoolExecutor(at_a_time, mp_context=get_context("spawn")) as workers:
        said = workers.map(partial(_said, lab), [mutations[i::at_a_time] for i in range(at_a_time)])
        return {key: words for found in said for key, words in found.items() if words}


def run(lab: str, first: int = 0, last: int | None = None, at_a_time: int = 2) -> dict:
    """Return how many mutations there are, how many some check saw, and which nobody saw and no file explains."""
    begin, mutations, known = time.monotonic(), mutations_of(lab)[first:last], equivalent(lab)
    asked = [mutation for mutation in mutations if mutation.key not in known]
    left = survivors(lab, asked, at_a_time)
    return {
        "mutations": len(mutations),
        "seen by a check": len(asked) - len(left),
        "change nothing": len(mutations) - len(asked),
        "seen by none": left,
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


def _said(lab: str, mutations: list[Mutation]) -> dict[str, str]:
    """Return for each mutation what the checks said if none took a point, else ""."""
    right = handed_in(Sample(lab, "right", "the solution", cells={}))
    found = {}
    with Referee(lab, "cpu", same_player=True) as referee:
        for mutation in mutations:
            begin = time.monotonic()
            found[mutation.key] = words = _points_lost(mutation, lab, referee, right)
            outcome = "seen by none" if words else "seen"
            print(f"{time.monotonic() - begin:4.0f} s | {outcome} | {mutation.key}", file=sys.stderr, flush=True)
    return found


def _points_lost(mutation: Mutation, lab: str, referee: Referee, right: dict[str, bytes]) -> str:
    """Ask the checks whose answer is another one than the solution's, timed ones last."""
    try:
        with _at_most(NOTEBOOK_S):
            answers = handed_in(mutation.sample(lab))
    except Exception:  # a cell that shows the answer failed: students would see it, and no check is asked
        return ""
    if set(answers) != set(referee.checks):
        return ""
    said = ["no other check has another answer than the solution's"]
    other = [name for name in referee.checks if without_class_ids(answers[name]) != without_class_ids(right[name])]
    for name in sorted(other, key=lambda name: referee.lab.CHECKS[name].timed):
        verdict = _judged(answers, name, referee)
        if verdict.points < verdict.max_points:
            return ""
        said.append(verdict.text())
    return "\n".join(said)


def without_class_ids(answer: bytes) -> bytes:
    """Return a pickled answer without what differs each time that the same answer is pickled."""
    return _CLASS_ID.sub(b"", answer)


def _judged(answers: dict[str, bytes], name: str, referee: Referee) -> Verdict:
    for _ in range(RETRIES):
        [verdict] = referee.judge(answers, only=name)
        if not verdict.inconclusive:
            break
    return verdict


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread if what is inside takes longer."""

    def ends(*_) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ends)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lab")
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-a-time", type=int, default=2, help="how many workers judge mutations side by side")
    arguments = parser.parse_args()
    found = run(arguments.lab, arguments.first, arguments.last, arguments.at_a_time)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
