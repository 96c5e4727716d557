"""A class whose grader is killed at random moments, and started again: are the grades those of an undisturbed run?"""

import inspect
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
from nbgrader.api import Gradebook
from traitlets.config import Config

from grading.attacks.attack import worthless
from grading.backlog import grade_all
from grading.classroom import ROOT, Classroom
from grading.samples import read_lab

LAB, CELL = "lab2_ddp", "plan_buckets"
SETTLE_S = 30.0  # for what a killed grader leaves to notice it: a worker may be importing still


def run(n_kills: int, students: int = 6, at_a_time: int = 2, longest_s: float = 20.0, seed: int = 0) -> dict:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder:
        calm, shaken = (_course(Path(folder, name), students) for name in ("calm", "shaken"))
        due = _grade_to_the_end(calm, at_a_time)
        killed, classes, left, wrong = 0, 0, [], []
        while killed < n_kills:
            others = set(_ours())
            if _killed_while_grading(shaken, at_a_time, draw.uniform(0.5, longest_s)):
                killed += 1
                left += _left_behind(others)
                continue
            classes += 1  # graded to the end: compare, and begin anew
            wrong += _differences(due, _grades(shaken))
            shutil.rmtree(shaken)
            _course(shaken, students)
        _grade_to_the_end(shaken, at_a_time)
        wrong += _differences(due, _grades(shaken))
        return {
            "kills": killed,
            "students": students,
            "at a time": at_a_time,
            "classes graded to the end": classes + 1,
            "grades that differ, are lost or doubled": wrong,
            "processes left behind": left,
        }


def _course(root: Path, students: int) -> Path:
    shutil.copytree(ROOT / "solutions" / LAB, root / "solutions" / LAB)
    with closing(Classroom(root)) as classroom:
        classroom.release(LAB)
        for i in range(students):
            classroom.hand_in(LAB, f"student{i}", of_one_cell(i, right=i % 3 > 0))
    return root


def of_one_cell(number: int, right: bool = True):
    """A submission of the one part that takes no ranks' training: right, or worth nothing; no two are the same."""
    released, solved = read_lab("labs", LAB), read_lab("solutions", LAB)
    sources = {c.metadata.nbgrader.grade_id: c.source for c in solved.cells}
    for cell in released.cells:
        if cell.metadata.nbgrader.grade_id == CELL:
            cell.source = sources[CELL] + f"\n# by student {number}\n"
            if not right:
                cell.source += f"\n{inspect.getsource(worthless)}\n{CELL} = {worthless.__name__}\n"
    return released


def _grade_to_the_end(root: Path, at_a_time: int) -> dict:
    subprocess.run(_command(root, at_a_time), check=True)
    return _grades(root)


def _command(root: Path, at_a_time: int) -> list[str]:
    call = f"from grading.bench.kills import grade_course; grade_course({str(root)!r}, {at_a_time})"
    return [sys.executable, "-c", call]


def grade_course(root: str, at_a_time: int) -> None:
    with closing(Classroom(Path(root), Config())) as classroom:
        for graded in grade_all(classroom, LAB, classroom.students(LAB), at_a_time=at_a_time):
            if graded.problem:
                raise SystemExit(f"{graded.student}: {graded.problem}")


def _killed_while_grading(root: Path, at_a_time: int, after_s: float) -> bool:
    grader = subprocess.Popen(_command(root, at_a_time))
    try:
        grader.wait(after_s)
    except subprocess.TimeoutExpired:
        grader.send_signal(signal.SIGKILL)
        grader.wait()
        return True
    if grader.returncode:
        raise RuntimeError(f"the grader gave up: {grader.returncode}")
    return False


def _left_behind(others: set[psutil.Process]) -> list[str]:
    """Commands of what is still there a while after a kill; the last run's workers may be among the `others`."""
    deadline = time.monotonic() + SETTLE_S
    while (left := _ours().keys() - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [command for process, command in _ours().items() if process in left]


def _ours() -> dict[psutil.Process, str]:
    words = ("grading.crew_host", "grading.notebook_host", "submitit")
    lines = {p: " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])}
    return {p: line for p, line in lines.items() if any(word in line for word in words)}


def _grades(root: Path) -> dict[str, list]:
    """Of each student: points by cell, of each submission that the gradebook has."""
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
