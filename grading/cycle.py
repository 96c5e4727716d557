"""The instructor's commands for all labs or one: release, grade, feedback. A bad submission stops no other."""

from contextlib import closing

from rich.console import Console

from grading.classroom import Classroom
from grading.leaderboard import write_leaderboard
from grading.report import grade_row, grade_table


def release_labs(lab: str | None, console: Console) -> None:
    with closing(Classroom()) as classroom:
        for name in _labs(classroom, lab):
            classroom.release(name)
            console.print(f"labs/{name}/{name}.ipynb is made from solutions/{name}")


def grade_labs(lab: str | None, students: list[str], console: Console) -> bool:
    """True if every submission now has a grade, however low."""
    with closing(Classroom()) as classroom:
        return all([_grade_lab(classroom, name, students, console) for name in _labs(classroom, lab)])


def _grade_lab(classroom: Classroom, lab: str, students: list[str], console: Console) -> bool:
    handed_in = classroom.students(lab)
    if missing := set(students) - set(handed_in):
        console.print(
            f"[red]no submission of {lab} from {', '.join(sorted(missing))}[/]: nothing under grading/submitted"
        )
    chosen = [s for s in handed_in if s in students or not students]
    table, problems = grade_table(f"{lab}: {len(chosen)} submissions", lab), []
    with console.status("") as status:
        for i, student in enumerate(chosen, 1):
            status.update(f"{lab}: grading {i} of {len(chosen)}, {student}")
            try:
                table.add_row(*grade_row(classroom.autograde(lab, student), lab))
            except RuntimeError as error:
                problems.append(f"[red]{student} has no new grade[/]: {error}")
    console.print(table)
    try:
        for file in write_leaderboard(classroom, lab):
            console.print(f"leaderboard: {file}")
    except OSError as error:
        problems.append(f"[red]no leaderboard[/]: {error}")
    for problem in problems:
        console.print(problem)
    return not problems and not missing


def write_feedback(lab: str | None, console: Console) -> bool:
    with closing(Classroom()) as classroom:
        for name in _labs(classroom, lab):
            classroom.feedback(name)
            console.print(f"feedback pages: grading/feedback/<student>/{name}/{name}.html")
    return True


def _labs(classroom: Classroom, lab: str | None) -> list[str]:
    there = classroom.labs()
    if lab is None:
        return there
    if lab not in there:
        raise SystemExit(f"there is no lab {lab!r}; there are {', '.join(there)}")
    return [lab]
