"""Judge a submission's answers: one verdict for every check of the lab, whatever the submission does."""

import re
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from grading.boxes.rank_launcher_client import RankLauncher, RanksFailedError, ReferenceFailedError
from grading.boxes.sandbox import Box, Processes, best_box
from grading.judge.find_lab import lab_module, name_of
from grading.judge.reference_lookup import NotRecorded, answers_for
from grading.judge.session import LONGEST_DEADLINE_S, Check, Session
from grading.judge.verdict import Verdict
from shardcourse.source_text import report
from shardlab.tier import detect

FALSE_FAIL = 1e-3
HANGS = 2  # an answer that hung this often is not run again, since each time costs the full deadline
MOST_LOST_S = HANGS * LONGEST_DEADLINE_S  # on failed tries of one submission; then nothing of it is run again
MOST_OF_AN_ERROR = 20_000  # characters
_OWN_FRAME = re.compile(r'  File "[^"\n]*/grading/boxes/rank_launcher_in_box\.py".*\n(?:    .*\n)*')
_UNWRITTEN = re.compile(r'(File "[^"\n]*", line \d+), in (\w+)\n(?:    .*\n)*NotImplementedError *$', re.M)
UNREADABLE = "the judge could not read what your ranks replied"  # they were changed there, or the judge is at fault
NOT_HANDED_IN = "the notebook did not hand in an answer for this check."


class Referee:
    """A judge of one lab, on `tier` (None: what this machine has). Close it when done, or use it in a `with`.

    The referee keeps the launcher of the reference's ranks. A submission gets its own, which ends with it. Both use one
    kind of box, so their times compare. `same_player` is for a student's own notebook, where all submissions are the
    same person's: one launcher for all, which is ready at once, and no box. `false_fail`: the highest chance, each time
    that a check is judged, that a step as fast as asked is called too slow.
    """

    def __init__(
        self,
        lab: str,
        tier: str | None = None,
        same_player: bool = False,
        box: Box | None = None,
        false_fail: float = FALSE_FAIL,
    ) -> None:
        self.lab: ModuleType = lab_module(lab)
        self.tier = detect(tier)
        self.same_player, self.false_fail = same_player, false_fail
        self.box = box or (Processes(limits=None) if same_player else best_box())
        self._ours, answers = answers_for(name_of(self.lab))
        modules = filter(None, (self.lab.DRILLS, answers))
        self._reference = RankLauncher(*modules, box=self.box, error=ReferenceFailedError)
        self._launcher: RankLauncher | None = None

    @property
    def checks(self) -> list[str]:
        return list(self.lab.CHECKS)

    def prepare(self) -> None:
        """Start the next submission's launcher early, during the seconds in which its notebook runs."""
        if self._launcher is None:
            self._launcher = RankLauncher(self.lab.DRILLS, box=self.box)

    def judge(
        self, answers: dict[str, bytes], problems: dict[str, str] | None = None, only: str | None = None
    ) -> list[Verdict]:
        """Judge all checks, or `only` one. `answers`: check name -> pickled answer. `problems`: why one is missing."""
        self.prepare()
        session = Session(
            answers, self._launcher, self._reference, self.tier, self.lab.pace, self.false_fail, self._ours
        )
        problems = problems or {}
        lost = _Lost()
        try:
            names = [name for name in self.checks if only in (None, name)]
            return [self._judge_one(session, name, problems.get(name, NOT_HANDED_IN), lost) for name in names]
        finally:
            if not self.same_player:
                self._launcher.close()
                self._launcher = None

    def _judge_one(self, session: Session, name: str, problem: str, lost: "_Lost") -> Verdict:
        check: Check = self.lab.CHECKS[name]
        answer = session.answers.get(name)
        if answer is None:
            return Verdict(name, 0, check.points, problem)
        if len(hung := lost.by_hanging[answer]) >= HANGS:
            return _failed(name, check.points, hung[-1], f"not run, since your code hung {HANGS} times: ")
        if lost.seconds >= MOST_LOST_S:
            words = f"not run, since your code failed for {lost.seconds:.0f} s in the checks before."
            return Verdict(name, 0, check.points, words)
        began = time.monotonic()
        try:
            return _twice_if_killed(check.judge, session, name, check.points)
        except ReferenceFailedError as error:
            cause = "the reference run failed on this machine, which is no fault of the submission: grade again."
            return Verdict(name, 0, check.points, cause, str(error), inconclusive=True)
        except RanksFailedError as error:
            if error.timed_out:
                hung.append(error)
            if error.timed_out or error.killed:
                lost.seconds += time.monotonic() - began
            return _failed(name, check.points, error, "your code failed while it was run: ")
        except NotRecorded as error:
            cause = f"this can't be judged here, and it is no fault of yours: {error}. When it is graded, it will be."
            return Verdict(name, 0, check.points, cause, inconclusive=True)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # of torch's, too
            return Verdict(name, 0, check.points, f"{UNREADABLE}: an instructor has to look.", traceback.format_exc())

    def close(self) -> None:
        for launcher in filter(None, (self._reference, self._launcher)):
            launcher.close()
        self._launcher = None

    def __enter__(self) -> "Referee":
        return self

    def __exit__(self, *_) -> None:
        self.close()


@dataclass
class _Lost:
    """Errors of a submission's hanging answers, and the seconds that its failed tries have taken."""

    by_hanging: dict[bytes, list[RanksFailedError]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0


def _twice_if_killed(judge: Callable[..., Verdict], *arguments) -> Verdict:
    """Judge again if processes were killed: memory may have been short. A program that kills itself does so again."""
    try:
        return judge(*arguments)
    except RanksFailedError as error:
        if not error.killed:
            raise
        return judge(*arguments)


def _failed(name: str, points: float, error: RanksFailedError, words: str) -> Verdict:
    """Return a failed verdict whose error has the student's frames, no folders of this machine and no launcher frames.

    The submission may have written all of the error: no file that it names is opened.
    """
    text = _OWN_FRAME.sub("", f"{str(error)[:MOST_OF_AN_ERROR]}\n")
    head, _, detail = report(RuntimeError(text), add_code=False).partition("\n")
    if unwritten := _UNWRITTEN.search(f"{head}\n{detail}"):
        return Verdict(
            name, 0, points, f"nothing is written yet in {unwritten[2]}, {unwritten[1]}: NotImplementedError"
        )
    return Verdict(name, 0, points, words + head, detail.strip())
