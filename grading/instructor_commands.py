"""The instructor's commands for all labs or one: release, grade, feedback. A bad submission stops no other."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import OperationalError
from traitlets.config import Config

from grading.boxes.sandbox import best_box
from grading.gradebook.error_advice import CourseError, in_words, shown, visible
from grading.gradebook.grade_class import Graded, grade_all
from grading.gradebook.nbgrader_classroom import ROOT, Classroom
from grading.judge.find_lab import cell_name
from grading.judge.judge_answers import UNREADABLE
from grading.reports.class_page_and_tables import show, write_page
from grading.reports.class_report import class_report
from grading.reports.csv_export import export
from grading.reports.leaderboard import write_leaderboard
from grading.reports.terminal_table_of_lab import add_rows, grade_table


@contextmanager
def _told() -> Iterator[None]:
    """End a command with what to do, and without a traceback, if the gradebook or the disk can't be used."""
    try:
        yield
    except (CourseError, OperationalError, OSError) as error:
        raise SystemExit(in_words(error)) from None


def release_labs(lab: str | None, console: Console) -> bool:
    """Return True if every lab was released. Where that fails, what was released before stays."""
    problems = []
    with closing(Classroom()) as classroom:
        for name in _labs(classroom, lab):
            try:
                classroom.release(name)
                console.print(f"labs/{name}/{name}.ipynb is made from solutions/{name}")
            except (OSError, RuntimeError) as error:
                problems.append(f"[red]labs/{name} stays as it was[/]: {escape(in_words(error))}")
    for problem in problems:
        console.print(problem, highlight=False)
    return not problems


def grade_labs(lab: str | None, students: list[str], console: Console, again: bool = False, **how) -> bool:
    """Return True if every submission now has a grade, however low. `how`: further arguments of `grade_all`."""
    console.print(f"submissions run in {best_box().name}", highlight=False)
    settings = Config({"RefereeExecutor": {"again": again}})
    with closing(Classroom(settings=settings)) as classroom:
        return all([_grade_lab(classroom, name, students, console, how) for name in _labs(classroom, lab)])


def _grade_lab(classroom: Classroom, lab: str, students: list[str], console: Console, how: dict) -> bool:
    handed_in = classroom.students(lab)
    if missing := set(students) - set(handed_in):
        who = ", ".join(map(_shown, sorted(missing)))
        console.print(f"[red]no submission of {lab} from {who}[/]: nothing under grading/submitted")
    chosen = [s for s in handed_in if s in students or not students]
    outcomes: list[Graded] = []
    problems = [f"[red]{escape(visible(words))}[/]" for words in classroom.misplaced(lab).values()]
    try:
        with _progress(console) as progress:
            task = progress.add_task(lab, total=len(chosen), last="")
            for graded in grade_all(classroom, lab, chosen, **how):
                progress.update(task, advance=1, last=_shown(graded.student))
                outcomes.append(graded)
    except (CourseError, OSError) as error:
        problems.append(f"[red]{lab} can't be graded now[/]: {escape(in_words(error))}")
    outcomes.sort(key=lambda graded: graded.student)
    unchanged = sum(not graded.why for graded in outcomes)
    table = grade_table(f"{lab}: {len(chosen)} submissions, {unchanged} of them unchanged since they were graded", lab)
    add_rows(table, lab, [graded.grade for graded in outcomes if graded.grade])
    for graded in outcomes:
        if graded.grade is None:
            why = escape(visible(graded.problem))
            problems.append(f"[red]{_shown(graded.student)} has no new grade[/]: {why}")
    console.print(table)
    for graded in outcomes:
        for verdict in graded.grade.verdicts if graded.grade else ():
            if verdict.cause.startswith(UNREADABLE):
                console.print(
                    f"[yellow]{_shown(graded.student)}, {verdict.check}[/]: {UNREADABLE}: look at what it does"
                )
        for words in graded.grade.repairs if graded.grade and graded.why else ():
            console.print(f"{_shown(graded.student)}: {escape(visible(words))}", highlight=False)
    if outcomes and not any(graded.new for graded in outcomes):
        console.print(f"nothing is new since {lab} was graded last; --again judges all again", highlight=False)
    try:
        for file in write_leaderboard(classroom, lab):
            console.print(f"leaderboard: {file}")
    except Exception as error:  # the grades stay, and are shown
        problems.append(f"[red]no leaderboard[/]: {escape(str(error))}")
    for problem in problems:
        console.print(problem, highlight=False)
    return not problems and not missing


def _shown(student: str) -> str:
    """Return a student's name for the terminal: the name of a folder may hold markup."""
    return escape(shown(student))


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, TextColumn("{task.fields[last]}"), console=console, transient=True)


@_told()
def explain(lab: str | None, student: str, console: Console, root: Path = ROOT) -> None:
    """Print why the gradebook has these points: each check's verdict when it was graded."""
    if lab is None:
        raise SystemExit("say which lab, for example: shardlab grade lab2_ddp --explain ada")
    with closing(Classroom(root)) as classroom:
        try:
            (lab,) = _labs(classroom, lab)
            grade = classroom.grade(lab, student)
        except LookupError as error:
            raise SystemExit(str(error.args[0])) from None
    verdicts = {cell_name(v.check): v for v in grade.verdicts}
    for cell, points in grade.points.items():
        verdict = verdicts.get(cell)
        if verdict is None or verdict.points != points:
            by_hand = f"{cell}: {points:g} of {grade.max_points[cell]:g} points in the gradebook, entered by hand"
            console.print(by_hand, highlight=False, markup=False)
        if verdict is not None:
            console.print(visible(verdict.text()), highlight=False, markup=False, soft_wrap=True)
    for words in grade.repairs:
        console.print(f"before grading: {visible(words)}", highlight=False, markup=False)
    late = f"; {grade.late:g} are taken because it was late" if grade.late else ""
    total = f"{grade.total:g} of {sum(grade.max_points.values()):g} points"
    and_written = "".join(f"; written: {w.text}" for w in grade.written)
    console.print(f"{shown(student)} has {total} for {lab}{late}{and_written}", highlight=False, markup=False)


@_told()
def report_labs(lab: str | None, console: Console) -> None:
    with closing(Classroom()) as classroom:
        for name in _labs(classroom, lab):
            report = class_report(classroom, name)
            show(report, console)
            file = classroom.root / "grading" / "report" / f"{name}.html"
            write_page(report, file)
            console.print(f"as a page: {file.relative_to(classroom.root)}", highlight=False)


@_told()
def export_grades(form: str) -> str:
    with closing(Classroom()) as classroom:
        return export(classroom, form)


@_told()
def write_feedback(lab: str | None, console: Console) -> bool:
    """Return True if every student who was graded has a page."""
    problems = []
    with closing(Classroom()) as classroom:
        for name in _labs(classroom, lab):
            problems += [
                f"[red]{_shown(s)} has no page[/]: {escape(visible(why))}" for s, why in _feedback(classroom, name)
            ]
            console.print(f"feedback pages: grading/feedback/<student>/{name}/{name}.html")
    for problem in problems:
        console.print(problem, highlight=False)
    return not problems


def _feedback(classroom: Classroom, lab: str) -> Iterator[tuple[str, str]]:
    """Write a lab's pages. Yield each student without one, and why."""
    for student in classroom.students(lab, "autograded"):
        try:
            classroom.feedback(lab, student)
        except Exception as error:  # a failure for one student must not stop the others
            yield student, str(error)


def _labs(classroom: Classroom, lab: str | None) -> list[str]:
    there = classroom.labs()
    if lab is None:
        return there
    if lab not in there:
        near = [name for name in there if name.startswith(lab)] or get_close_matches(lab, there, 1)
        advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
        raise SystemExit(f"there is no lab {lab!r}: {advice}")
    return [lab]
