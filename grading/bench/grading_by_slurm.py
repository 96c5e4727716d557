"""Grade a class by jobs of submitit: on this machine, and by a real Slurm if one can run here."""

import tempfile
import time
from contextlib import closing
from pathlib import Path

from grading.attacks.attack import LAB
from grading.bench.make_class import POINTS, small_class
from grading.gradebook.grade_class import grade_all
from shardbench.slurm_here import obstacle, slurm_here

WRONG_EVERY = 3


def run(n: int, jobs: int) -> dict:
    """Grade a class of `n`, a third of it wrong, with `jobs` jobs at a time."""
    found: dict = {"local": _graded(n, jobs, "local")}
    if why := obstacle():
        return found | {"slurm": why}
    with slurm_here() as version:
        return found | {"slurm": {"version": version, "nodes": 1} | _graded(n, jobs, "slurm")}


def _graded(n: int, jobs: int, cluster: str) -> dict:
    with (
        tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder,
        closing(small_class(Path(folder), n, wrong_every=WRONG_EVERY)) as classroom,
    ):
        began, students = time.monotonic(), classroom.students(LAB)
        outcomes = {g.student: g for g in grade_all(classroom, LAB, students, at_a_time=jobs, cluster=cluster)}
        grades = [outcomes[student].grade for student in students]
        due = [POINTS if i % WRONG_EVERY else 0 for i in range(n)]
        return {
            "submissions": n,
            "jobs": jobs,
            "points as due": sum(grade is not None and grade.total == d for grade, d in zip(grades, due, strict=True)),
            "seconds a submission": round((time.monotonic() - began) / n, 1),
            "problems": [g.problem for g in outcomes.values() if g.problem],
        }
