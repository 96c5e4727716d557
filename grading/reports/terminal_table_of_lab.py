"""Grades as a table for the terminal: points, measured values, and the checks that lost points.

If the `lab` module of a lab has COLUMNS, {check: heading}, the table shows what these checks measured. Points are those
of the checks. What a person has graded, or has still to grade, stands beside them in a column of its own.
"""

from rich.markup import escape
from rich.table import Table

from grading.gradebook.error_advice import shown, visible
from grading.gradebook.nbgrader_classroom import Grade
from grading.judge.find_lab import lab_module
from grading.judge.verdict import Verdict


def grade_table(title: str, lab: str) -> Table:
    """Return an empty table for a lab; `grade_row` makes one row of it."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("student", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    for heading in _columns(lab).values():
        table.add_column(heading, justify="right", no_wrap=True)
    longest_word = max(len(check.split(".")[1]) for check in lab_module(lab).CHECKS) + 1
    table.add_column("lost points in", min_width=longest_word)
    return table


def add_rows(table: Table, lab: str, grades: list[Grade]) -> None:
    """Add a row for each grade, and the column for written arguments if there are any."""
    has_written = any(grade.written for grade in grades)
    if has_written:
        table.add_column("written", justify="right", no_wrap=True)
    for grade in grades:
        written = ", ".join(w.in_short for w in grade.written)
        table.add_row(*grade_row(grade, lab), *([written] if has_written else []))


def grade_row(grade: Grade, lab: str) -> list[str]:
    lost = [name.split("-", 1)[-1] for name, points in grade.points.items() if points < grade.max_points[name]]
    total = f"{grade.total:g}/{sum(grade.max_points.values()):g}" + (f" (late: -{grade.late:g})" if grade.late else "")
    colour = "red" if lost or grade.late else "green"
    measured = [" / ".join(_figures(grade.verdicts, check)) for check in _columns(lab)]
    return [escape(shown(grade.student)), f"[{colour}]{total}[/]", *measured, escape(", ".join(lost))]


def _columns(lab: str) -> dict[str, str]:
    return getattr(lab_module(lab), "COLUMNS", {})


def _figures(verdicts: list[Verdict], check: str) -> list[str]:
    """Values that the check measured, without units and intervals."""
    figures = next((v.figures for v in verdicts if v.check == check), {})
    return [escape(visible(got.split(" ")[0])) for got, _ in figures.values()]
