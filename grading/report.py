"""Grades as a table for the terminal: points, what was measured, and where points were lost."""

from rich.table import Table

from grading.classroom import Grade
from grading.verdict import Verdict


def grade_table(title: str) -> Table:
    """An empty table; `grade_row` makes one row of it."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("student", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("MiB a rank\npeak / kept", justify="right", no_wrap=True)
    table.add_column("step\ntime", justify="right", no_wrap=True)  # over the reference's
    table.add_column("lost points in", overflow="fold")
    return table


def grade_row(grade: Grade) -> list[str]:
    lost = [name for name, points in grade.points.items() if points < grade.max_points[name]]
    total = f"{grade.total:g}/{sum(grade.max_points.values()):g}"
    colour = "red" if lost else "green"
    memory, time = " / ".join(_measured(grade.verdicts, "memory")), "".join(_measured(grade.verdicts, "throughput"))
    return [grade.student, f"[{colour}]{total}[/]", memory, time and f"{time}x", ", ".join(map(_short, lost))]


def _measured(verdicts: list[Verdict], what: str) -> list[str]:
    """The figures of the check on `what`, without units and intervals."""
    figures = next((v.figures for v in verdicts if v.check.endswith(f".{what}")), {})
    return [got.split(" ")[0] for got, _ in figures.values()]


def _short(cell: str) -> str:
    return cell.split("-", 1)[1]
