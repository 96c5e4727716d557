"""Run `make demo`: grade a small class's lab 2 submissions: right, slow, memory-hungry, wrong, crashing and hanging.

Everything is real: nbgrader's release, gradebook and feedback, papermill, the referee and its ranks. The demo has its
own course directory, build/demo, so a real class's grades are never touched.
"""

import shutil
import time

from rich.console import Console

from grading.gradebook.nbgrader_classroom import ROOT, Classroom
from grading.judge.find_lab import cell_name, lab_module
from grading.reports.terminal_table_of_lab import grade_row, grade_table
from grading.samples.sample import samples
from shardcourse.lessons.folders import build, copy_files, shown

LAB = "lab2_ddp"


def run_demo(console: Console) -> bool:
    """Print the grade table. Return True if every submission got the expected points."""
    start, root = time.perf_counter(), build("demo")
    shutil.rmtree(root, ignore_errors=True)
    copy_files(ROOT / "solutions" / LAB, root / "solutions" / LAB)
    classroom, checks = Classroom(root), lab_module(LAB).CHECKS
    students = [s for s in samples(LAB) if s.demo]
    table = grade_table(f"{LAB}: {len(students)} submissions, each on 4 CPU ranks", LAB)
    table.add_column("due", justify="right", no_wrap=True)
    n_right, causes = 0, []
    try:
        with console.status("releasing the lab") as status:
            classroom.release(LAB)
            for i, sample in enumerate(students, 1):
                classroom.hand_in(LAB, sample.name, sample.notebook())
                status.update(f"grading {i} of {len(students)}: {sample.name} ({sample.about})")
                grade = classroom.autograde(LAB, sample.name)
                due = {cell_name(name): sample.points.get(name, check.points) for name, check in checks.items()}
                n_right += due == grade.points
                points = f"{sum(due.values()):g}"
                table.add_row(*grade_row(grade, LAB), points if due == grade.points else f"[red]{points}[/]")
                causes += [f"{grade.student}: {v.cause}" for v in grade.verdicts if not v.passed][:1]
            status.update("writing feedback")
            for sample in students:
                classroom.feedback(LAB, sample.name)
    finally:
        classroom.close()
    console.print(table)
    console.print("The first thing each was told:", *causes, sep="\n  ", highlight=False, markup=False)
    console.print(f"Feedback pages: {shown(root / 'grading' / 'feedback')}/<student>/{LAB}/{LAB}.html")
    console.print(f"{time.perf_counter() - start:.0f} s")
    console.print(f"{n_right} passed, {len(students) - n_right} failed", highlight=False)
    return n_right == len(students)
