"""Measure the cost of grading: each lab's solution through nbgrader, papermill and the referee, in its own course."""

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import nbformat
from rich.console import Console
from rich.table import Table

from grading.gradebook.nbgrader_classroom import ROOT, Classroom
from grading.samples.sample import read_lab
from shardbench import environment
from shardcourse.lessons.executed import output_problems
from shardcourse.lessons.folders import copy_files
from shardlab.tier import detect


def run(labs: Iterable[str] | None = None, tier: str | None = None) -> dict:
    """Return seconds and points for each lab's solution, on a tier: this machine's if left out."""
    record: dict = {"environment": environment(), "tier": detect(tier).name, "labs": []}
    with (
        patch.dict(os.environ, {"SHARDLAB_TIER": record["tier"]}),
        tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder,
    ):
        copy_files(ROOT / "solutions", Path(folder, "solutions"))
        with closing(Classroom(Path(folder))) as classroom:
            record["labs"] = [_grade(classroom, lab) for lab in labs or classroom.labs()]
    return record


def show(result: dict) -> None:
    table = Table("lab", "checks", "points", "seconds to grade", header_style="bold")
    for row in result["labs"]:
        table.add_row(row["lab"], str(row["checks"]), f"{row['points']:g}/{row['of']:g}", f"{row['seconds']:.0f}")
    Console().print(table)


def _grade(classroom: Classroom, lab: str) -> dict:
    classroom.release(lab)
    classroom.hand_in(lab, "solution", read_lab("solutions", lab))
    start = time.perf_counter()
    grade = classroom.autograde(lab, "solution")
    return {
        "lab": lab,
        "seconds": round(time.perf_counter() - start, 1),
        "checks": len(grade.points),
        "points": grade.total,
        "of": sum(grade.max_points.values()),
        "problems": output_problems(nbformat.read(classroom.autograded(lab, "solution"), as_version=4)),
    }
