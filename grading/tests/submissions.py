"""What the grader's tests hand in: a lab's samples, and answers made as a notebook would make them."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import cloudpickle
import psutil
import pytest
from deadlines import deadline_s

from grading.boxes.rank_launcher_client import RankLauncher, RanksFailedError, ReferenceFailedError, Watched
from grading.boxes.rank_launcher_in_box import _drill
from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.judge.find_lab import lab_module, name_of
from grading.judge.judge_answers import Referee
from grading.judge.reference_lookup import answers_for
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from grading.samples.sample import Sample, samples
from grading.samples.trial import judge, surprises
from shardlab import launch
from shardlab.tier import TIERS
from shardsim import simulated

ROOT = Path(__file__).resolve().parents[2]
LAB = "lab2_ddp"  # of the tests that need any lab
LABS = sorted(p.name for p in (ROOT / "solutions").iterdir() if p.is_dir())
LONGEST_SAMPLE_S = 600


def pickled(source: str, name: str) -> bytes:
    """What `name` is after `source`, as an answer."""
    names = {"__name__": "submission"}
    exec(source, names)
    return cloudpickle.dumps(names[name])


def class_of(lab: str) -> list:
    """The lab's samples as pytest parameters, for `make samples`.

    One that hangs is run twice, to a deadline that grows with how busy the machine is.
    """
    marks = [pytest.mark.timeout(LONGEST_SAMPLE_S), pytest.mark.night]
    return [pytest.param(s, id=s.name, marks=marks) for s in samples(lab)]


def concerned(lab: str, checks: tuple[str, ...]) -> list:
    """As parameters for `make test`: those that lose points by one of these checks, and right ones."""
    return [pytest.param(s, id=s.name) for s in samples(lab) if not s.points or set(checks) & set(s.points)]


def try_sample(sample: Sample, answers: dict[str, bytes], referee: Referee) -> None:
    """The referee gives the points that are due, and the check that finds the mistake names it."""
    found = surprises(sample, judge(sample, answers, referee))
    assert found == [], found


NOBODY_SEES = Seen()


class Unboxed:
    """In a launcher's place, without host and box: a drill's one rank is this process, more are launched from it.

    `replies` by drill stand for what ranks reply: a list with one entry a rank, or a function of the drill's arguments.
    """

    _of_reference: ClassVar[dict[str, str]] = {}  # what one rank of it has replied, as JSON

    def __init__(
        self,
        *modules: str,
        box=None,
        error: type[RanksFailedError] = RanksFailedError,
        seen: Seen = NOBODY_SEES,
        **replies,
    ) -> None:
        self.modules, self.error, self.replies, self.seen = modules, error, replies, seen

    def order(self, drill, answer, *, world_size, timeout_s, device="cpu", network=None, **arguments) -> list:
        arguments = json.loads(json.dumps(arguments))
        if drill in self.replies:
            replies = self.replies[drill]
            return json.loads(json.dumps(replies(**arguments) if callable(replies) else replies))
        encoded = None if answer is None else base64.b64encode(answer).decode()
        call = (self.modules, drill, encoded, arguments, False)
        if world_size > 1:
            return launch(
                _drill,
                world_size,
                *call,
                timeout_s=deadline_s(60),
                device=device,
                network=network and simulated(network),
            )
        try:
            if answer is not None:
                return json.loads(json.dumps([_drill(*call)]))
            if (key := json.dumps(call)) not in self._of_reference:
                self._of_reference[key] = json.dumps([_drill(*call)])
            return json.loads(self._of_reference[key])
        except Exception as error:
            raise self.error(f"{type(error).__name__}: {error}") from error

    def watch(self, drill, answer, **setting) -> Watched:
        return Watched(self.order(drill, answer, **setting), self.seen)

    def close(self) -> None:
        pass


def launcher_or_no_reference(
    *modules: str, box, error: type[RanksFailedError] = RanksFailedError
) -> RankLauncher | Unboxed:
    """Stand in for `RankLauncher` in a referee: the reference's processes start only where something is compared."""
    kind = Unboxed if error is ReferenceFailedError else RankLauncher
    return kind(*modules, box=box, error=error)


def judge_replies(check: str, mine: dict, reference: dict | None = None, seed: int = 1) -> Verdict:
    """The check's judge alone, on what the submission's ranks reply and the reference's, by drill."""
    lab = lab_module(check)
    launchers = Unboxed(lab.DRILLS, **mine), Unboxed(lab.DRILLS, **(reference or {}))
    session = Session(
        {check: b""}, *launchers, TIERS["cpu"], lambda session: None, 1e-3, answers_for(name_of(lab))[0], seed
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grading.judge.verdict_pictures._picture", lambda draw: "")  # test_pictures draws them
        return lab.CHECKS[check].judge(session, check, lab.CHECKS[check].points)


def falls_short(said: dict) -> dict:
    """Of those whose cause is to have these words, and who are to get so many points: who has others."""
    return {words: v.text() for words, (v, points) in said.items() if v.points != points or words not in v.cause}


def surprises_of(sample: Sample, answers: dict[str, bytes], referee: Referee, checks: tuple[str, ...]) -> list[str]:
    """`surprises`, of some of the lab's checks: the cause is held against theirs if one of them gives it."""
    first = next((name for name in referee.checks if name in sample.points), None)
    verdicts = [referee.judge(answers, only=name)[0] for name in checks]
    own = sample if first in checks else replace(sample, cause="")
    return surprises(own, verdicts)


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
