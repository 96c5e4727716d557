"""Put answers with slips made by machine before a lab's judges: what no check sees is a hole, or changes nothing.

What changes nothing stands in `grading/checks/<lab>/equivalent_slips.toml`: the slip's key = why nobody can see it.
"""

import argparse
import json
import signal
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from grading.gradebook.nbgrader_api import ROOT
from grading.judge.referee import Referee
from grading.judge.verdict import Verdict
from grading.samples.slips import Slip, slips_of
from grading.samples.trial import RETRIES, handed_in

NOTEBOOK_S = 120  # for the cells that no judge runs: a slip may loop for ever


def equivalent(lab: str) -> dict[str, str]:
    """Return the slips of a lab that change nothing: key -> why."""
    file = ROOT / "grading" / "checks" / lab / "equivalent_slips.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def survivors(lab: str, slips: list[Slip], at_a_time: int = 1) -> dict[str, str]:
    """Judge the slips of a lab. Return those that no check saw: key -> what the checks said."""
    with ProcessPoolExecutor(at_a_time, mp_context=get_context("spawn")) as workers:
        said = workers.map(partial(_said, lab), [slips[i::at_a_time] for i in range(at_a_time)])
        return {key: words for found in said for key, words in found.items() if words}


def run(lab: str, first: int = 0, last: int | None = None, at_a_time: int = 2) -> dict:
    """Return how many slips there are, how many some check saw, and which nobody saw nor is known to change nothing."""
    begin, slips, known = time.monotonic(), slips_of(lab)[first:last], equivalent(lab)
    asked = [slip for slip in slips if slip.key not in known]
    left = survivors(lab, asked, at_a_time)
    return {
        "slips": len(slips),
        "seen by a check": len(asked) - len(left),
        "change nothing": len(slips) - len(asked),
        "seen by none": left,
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


def _said(lab: str, slips: list[Slip]) -> dict[str, str]:
    """Return for each slip what the checks said if none took a point, else ""."""
    with Referee(lab, "cpu", same_player=True) as referee:
        return {slip.key: _points_lost(slip, lab, referee) for slip in slips}


def _points_lost(slip: Slip, lab: str, referee: Referee) -> str:
    try:
        with _at_most(NOTEBOOK_S):
            answers = handed_in(slip.sample(lab))
    except Exception:  # a cell that shows the answer failed: students would see it, and no check is asked
        return ""
    if set(answers) != set(referee.checks):
        return ""
    said = []
    for name in sorted(referee.checks, key=lambda name: referee.lab.CHECKS[name].timed):  # timed ones last
        verdict = _judged(answers, name, referee)
        if verdict.points < verdict.max_points:
            return ""
        said.append(verdict.text())
    return "\n".join(said)


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
    arguments = parser.parse_args()
    found = run(arguments.lab, arguments.first, arguments.last)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
