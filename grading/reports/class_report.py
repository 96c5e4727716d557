"""Report on a lab's class: points, missed checks and why, slow submissions, noisy races.

It is made from the gradebook and from judged submissions (`result_cache`); nothing is stored here.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from grading.gradebook.error_advice import shown, visible
from grading.gradebook.inspect_files import inspect, read_submission, released_notebook
from grading.gradebook.manually_graded_cells import Written
from grading.gradebook.nbgrader_classroom import Classroom, Grade
from grading.judge.find_lab import cell_name, lab_module
from grading.judge.verdict import Verdict
from grading.reports.similarity import Pair, alike
from shardbench import environment
from shardcourse.lessons.cells import code_cells

ALIKE = 0.6  # pairs that share this much or more are named
OURS = "grading.checks", "grading.references"  # whoever names them looked for our answers
GRADERS = "the graders' own code"
N_SLOWEST = 5
NOT_TRIED = "it was not graded: run `shardlab grade`"
_PAIRS = re.compile(r"(\d+) pairs\b")


@dataclass(frozen=True)
class CheckRow:
    """Results of a check: students with all points, a part, none; and the commonest causes of lost points."""

    check: str
    points: float
    full: int
    part: int
    none: int
    commonest: list[tuple[str, int]]


@dataclass(frozen=True)
class ClassReport:
    lab: str
    grades: list[Grade]
    not_graded: dict[str, str]  # student -> why
    notes: dict[str, tuple[str, ...]]  # student with a grade -> what was repaired, why a later submission has no grade
    checks: list[CheckRow]
    seconds: dict[str, float]  # student -> seconds to judge, the longest first
    laps: list[int]  # pairs of laps in each race
    judged_again: dict[str, int]  # student -> how often a check was judged again because of noise
    pairs: list[Pair]
    borrowers: list[str]  # students whose code names our packages
    environment: dict

    @property
    def most(self) -> float:
        return sum(row.points for row in self.checks)

    @property
    def totals(self) -> list[float]:
        return [g.total for g in self.grades]

    @property
    def written(self) -> list[tuple[str, Written]]:
        """Return each student's written arguments, those that wait for a person first."""
        pairs = [(shown(g.student), w) for g in self.grades for w in g.written]
        return sorted(pairs, key=lambda pair: pair[1].points is not None)

    @property
    def missed_first(self) -> list[CheckRow]:
        """Return the checks, the most missed first."""
        return sorted(self.checks, key=lambda row: -(row.none + row.part / 2))

    @property
    def slowest(self) -> list[tuple[str, float]]:
        return list(self.seconds.items())[:N_SLOWEST]

    def histogram(self) -> list[tuple[str, int]]:
        """Return ten bars (points from - to, students); full points belong to the last bar."""
        width = self.most / 10
        bars = Counter(min(int(total / width), 9) for total in self.totals)
        return [(f"{i * width:g} - {(i + 1) * width:g}", bars[i]) for i in range(10)]

    def summary(self) -> list[str]:
        """Return the main results, one sentence each."""
        graded, waiting = len(self.grades), len(self.not_graded)
        words = [f"{graded} graded" + (f", {waiting} without a grade" if waiting else "")]
        if self.grades:
            middle = f"mean {mean(self.totals):.1f}, median {median(self.totals):g} of {self.most:g} points"
            late = [g.student for g in self.grades if g.late]
            words += [f"{middle}; {sum(t >= self.most for t in self.totals)} have all"]
        if self.written:
            points = [w.points for _, w in self.written if w.points is not None]
            middle = f", mean {mean(points):.1f} of {self.written[0][1].max_points:g} points" if points else ""
            words += [f"written arguments: {len(self.written) - len(points)} to grade, {len(points)} graded{middle}"]
            words += [f"less points because they were late: {', '.join(map(shown, late))}"] if late else []
        if self.seconds:
            took = list(self.seconds.values())
            words += [f"judging took {median(took):.0f} s in the middle, {max(took):.0f} s at most"]
        if self.laps:
            words += [f"races took {median(self.laps):g} pairs of laps in the middle, {max(self.laps)} at most"]
        again = sum(self.judged_again.values())
        words += [f"checks that noise hid the first time: {again}"] if again else []
        words += [f"code that names the graders' own: {', '.join(self.borrowers)}"] if self.borrowers else []
        return words


def class_report(classroom: Classroom, lab: str) -> ClassReport:
    grades, not_graded, notes, judged = [], {}, {}, {}
    for student in classroom.students(lab):
        kept = classroom.shelf.get(lab, student)
        judged |= {student: kept.judged} if kept else {}
        problem = classroom.shelf.problem(lab, student)
        try:
            grades.append(classroom.grade(lab, student))
            later = (visible(f"what was handed in last has no grade: {problem}"),) if problem else ()
            if said := (*grades[-1].repairs, *later):
                notes[shown(student)] = said
        except LookupError:
            unclear = kept and kept.judged.unclear
            not_graded[shown(student)] = visible(unclear[0].cause if unclear else problem or NOT_TRIED)
        except Exception as error:  # a failure for one student must not stop the others
            not_graded[shown(student)] = f"its grade can't be read: {type(error).__name__}: {error}"
    for place, words in classroom.misplaced(lab).items():
        not_graded.setdefault(shown(place), visible(words))
    released = released_notebook(classroom.root, lab)
    notebooks = _notebooks(classroom, lab, released)
    verdicts = [v for j in judged.values() for v in j.verdicts]
    seconds = sorted(((s, j.seconds) for s, j in judged.items()), key=lambda pair: -pair[1])
    return ClassReport(
        lab,
        grades,
        not_graded,
        notes,
        [_row(name, check.points, grades) for name, check in lab_module(lab).CHECKS.items()],
        dict(seconds),
        [int(n) for v in verdicts for got, _ in v.figures.values() for n in _PAIRS.findall(got)],
        {student: j.judged_again for student, j in judged.items() if j.judged_again},
        _alike(lab, notebooks, released),
        [
            student
            for student, nb in notebooks.items()
            if any(name in c.source for c in code_cells(nb) for name in OURS)
        ],
        environment(),
    )


def _row(name: str, most: float, grades: list[Grade]) -> CheckRow:
    points = [g.points[cell_name(name)] for g in grades if cell_name(name) in g.points]
    full, none = sum(p >= most for p in points), sum(p <= 0 for p in points)
    said = Counter(_in_short(v) for g in grades for v in g.verdicts if v.check == name and not v.passed)
    return CheckRow(name, most, full, len(points) - full - none, none, said.most_common(3))


def _in_short(verdict: Verdict) -> str:
    """Return a cause without its numbers, so that equal mistakes count as the same."""
    return visible(re.sub(r"\d[\d.,]*", "…", verdict.cause))


def _notebooks(classroom: Classroom, lab: str, released: NotebookNode) -> dict[str, NotebookNode]:
    notebooks = {}
    for student in classroom.students(lab):
        try:
            inspect(classroom.submitted(lab, student))
            notebooks[shown(student)] = read_submission(classroom.submitted(lab, student), lab, released)
        except Exception:  # an unreadable notebook can't be compared; grading has reported it
            continue
    return notebooks


def _alike(lab: str, notebooks: dict[str, NotebookNode], released: NotebookNode) -> list[Pair]:
    """Pairs of alike students, and of a student and the graders, whose repository may be public."""
    folder = Path(lab_module(lab).__file__).parent
    files = [*sorted(folder.glob("*.py")), *sorted(folder.parents[1].glob(f"references/{lab}/*.py"))]
    references = new_notebook(cells=[new_code_cell(file.read_text(encoding="utf-8")) for file in files])
    return alike(notebooks | {GRADERS: references}, released, ALIKE)
