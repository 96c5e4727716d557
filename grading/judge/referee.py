"""Judge a submission's answers: one verdict for every check of the lab, whatever the submission does."""

import re
import traceback
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType

from grading.boxes.ranks import Crew, CrewError, ReferenceCrewError
from grading.boxes.sandbox import Box, Processes, best_box
from grading.judge.labs import lab_module
from grading.judge.submission_run import Check, Session
from grading.judge.verdict import Verdict
from shardcourse.source_text import report
from shardlab.tier import detect

FALSE_FAIL = 1e-3
HANGS = 2  # of one answer, each of which costs the full deadline: after these it is not run again
MOST_OF_AN_ERROR = 20_000  # characters
_OWN_FRAME = re.compile(r'  File "[^"\n]*/grading/boxes/ranks_host\.py".*\n(?:    .*\n)*')
NOT_HANDED_IN = "the notebook did not hand in an answer for this check."


class Referee:
    """Judges one lab, on `tier` (None: what this machine has). Close it when done, or use it in a `with`.

    It keeps the reference's crew; a submission gets a crew of its own, ended with it. Both are in boxes of one kind, so
    that their times compare. With `same_player`, as in a student's own notebook, every submission is the same person's:
    there is one crew for all, at once ready again, and no box. `false_fail`: how probable it may be, each time that a
    check is judged, that a step as fast as is asked is called too slow.
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
        self._reference = Crew(self.lab.DRILLS, self.box, ReferenceCrewError)
        self._crew: Crew | None = None

    @property
    def checks(self) -> list[str]:
        return list(self.lab.CHECKS)

    def prepare(self) -> None:
        """Start the next submission's crew, in seconds that its notebook needs anyway."""
        if self._crew is None:
            self._crew = Crew(self.lab.DRILLS, self.box)

    def judge(
        self, answers: dict[str, bytes], problems: dict[str, str] | None = None, only: str | None = None
    ) -> list[Verdict]:
        """`answers`: check name -> pickled answer. `problems`: why a check has none, where that is known."""
        self.prepare()
        session = Session(answers, self._crew, self._reference, self.tier, self.lab.pace, self.false_fail)
        problems = problems or {}
        hung: dict[bytes, list[CrewError]] = defaultdict(list)  # by answer
        try:
            names = [name for name in self.checks if only in (None, name)]
            return [self._judge_one(session, name, problems.get(name, NOT_HANDED_IN), hung) for name in names]
        finally:
            if not self.same_player:
                self._crew.close()
                self._crew = None

    def _judge_one(self, session: Session, name: str, problem: str, hung: dict[bytes, list]) -> Verdict:
        check: Check = self.lab.CHECKS[name]
        answer = session.answers.get(name)
        if answer is None:
            return Verdict(name, 0, check.points, problem)
        if len(hung[answer]) >= HANGS:
            return _failed(name, check.points, hung[answer][-1], f"not run, since your code hung {HANGS} times: ")
        try:
            return _twice_if_killed(check.judge, session, name, check.points)
        except ReferenceCrewError as error:
            cause = "the reference run failed on this machine, which is no fault of the submission: grade again."
            return Verdict(name, 0, check.points, cause, str(error), inconclusive=True)
        except CrewError as error:
            if error.timed_out:
                hung[answer].append(error)
            return _failed(name, check.points, error, "your code failed while it was run: ")
        except (ArithmeticError, LookupError, TypeError, ValueError):
            cause = "the judge could not read what your ranks replied: an instructor has to look."
            return Verdict(name, 0, check.points, cause, traceback.format_exc(), inconclusive=True)

    def close(self) -> None:
        for crew in filter(None, (self._reference, self._crew)):
            crew.close()
        self._crew = None

    def __enter__(self) -> "Referee":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _twice_if_killed(judge: Callable[..., Verdict], *arguments) -> Verdict:
    """A system short of memory kills, which is no fault of the submission's; who kills itself does so again."""
    try:
        return judge(*arguments)
    except CrewError as error:
        if not error.killed:
            raise
        return judge(*arguments)


def _failed(name: str, points: float, error: CrewError, words: str) -> Verdict:
    """As a lesson shows an error: the student's frames, no folder of this machine, nothing of how ranks are started.

    The submission may have written all of it: no file that it names is opened.
    """
    text = _OWN_FRAME.sub("", f"{str(error)[:MOST_OF_AN_ERROR]}\n")
    head, _, detail = report(RuntimeError(text), add_code=False).partition("\n")
    return Verdict(name, 0, points, words + head, detail.strip())
