"""Kill a class's grader at random moments and start it again: are the grades those of an undisturbed run?"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
from nbgrader.api import Gradebook
from traitlets.config import Config

from grading.attacks.attack import LAB
from grading.bench.make_class import small_class
from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom

SETTLE_S = 30.0  # until the processes of a killed grader notice it and end: a worker may still be importing


def run(n_kills: int, students: int = 6, at_a_time: int = 2, longest_s: float = 50.0, seed: int = 0) -> dict:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder:
        calm, shaken = (_course(Path(folder, name), students) for name in ("calm", "shaken"))
        due = _grade_to_the_end(calm, at_a_time)
        killed, in_the_middle, classes, left, wrong = 0, 0, 0, [], []
        while killed < n_kills:
            if _killed_while_grading(shaken, at_a_time, draw.uniform(0.5, longest_s)):
                killed += 1
                in_the_middle += any((shaken / "grading" / "judged").rglob("*.json"))
                left += _left_behind(shaken)
                continue
            classes += 1  # graded to the end: compare, and start again
            wrong += _differences(due, _grades(shaken))
            shutil.rmtree(shaken)
            _course(shaken, students)
        _grade_to_the_end(shaken, at_a_time)
        wrong += _differences(due, _grades(shaken))
        return {
            "kills": killed,
            "when something was judged already": in_the_middle,
            "students": students,
            "at a time": at_a_time,
            "classes graded to the end": classes + 1,
            "grades that differ, are lost or doubled": wrong,
            "processes left behind": left,
        }


def _course(root: Path, students: int) -> Path:
    small_class(root, students, wrong_every=3).close()
    return root


def _grade_to_the_end(root: Path, at_a_time: int) -> dict:
    if code := _start(root, at_a_time).wait():
        raise RuntimeError(f"the grader gave up: {code}")
    return _grades(root)


def _start(root: Path, at_a_time: int) -> subprocess.Popen:
    """Start a grader with the course's path in its PATH, which all processes that it starts inherit."""
    call = f"from grading.bench.kills import grade_course; grade_course({str(root)!r}, {at_a_time})"
    marked = {"PATH": f"{os.environ['PATH']}{os.pathsep}{root}"}
    return subprocess.Popen([sys.executable, "-c", call], env=os.environ | marked)


def grade_course(root: str, at_a_time: int) -> None:
    with closing(Classroom(Path(root), Config())) as classroom:
        for graded in grade_all(classroom, LAB, classroom.students(LAB), at_a_time=at_a_time):
            if graded.problem:
                raise SystemExit(f"{graded.student}: {graded.problem}")


def _killed_while_grading(root: Path, at_a_time: int, after_s: float) -> bool:
    grader = _start(root, at_a_time)
    try:
        grader.wait(after_s)
    except subprocess.TimeoutExpired:
        grader.send_signal(signal.SIGKILL)
        grader.wait()
        return True
    if grader.returncode:
        raise RuntimeError(f"the grader gave up: {grader.returncode}")
    return False


def _left_behind(root: Path) -> list[str]:
    """Return the killed grader's processes that still run after SETTLE_S seconds."""
    deadline = time.monotonic() + SETTLE_S
    while (left := _marked(root)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _marked(root: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            if str(root) in process.environ().get("PATH", ""):
                found.append(" ".join(process.info["cmdline"])[-200:])
    return found


def _grades(root: Path) -> dict[str, list]:
    """Return for each student the points by cell, for each submission in the gradebook."""
    found = {}
    with Gradebook(f"sqlite:///{root}/grading/gradebook.db") as gradebook:
        for student in gradebook.students:
            found[student.id] = [
                sorted((g.name, g.auto_score) for n in s.notebooks for g in n.grades)
                for s in gradebook.student_submissions(student.id)
            ]
    return found


def _differences(due: dict, got: dict) -> list[str]:
    return [f"{s}: {got.get(s)} for {due.get(s)}" for s in sorted(due.keys() | got.keys()) if due.get(s) != got.get(s)]
