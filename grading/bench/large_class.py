"""Grade hundreds of submissions: measure seconds and memory, and grade the same class with stock nbgrader."""

import os
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from unittest.mock import patch

import nbformat
import papermill
from traitlets.config import Config

from grading.attacks.attack import LAB
from grading.bench.make_class import POINTS, small_class
from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.boxes.notebook_runner_in_box import all_cells_run
from grading.boxes.sandbox.process_tree_memory import family, held_bytes
from grading.gradebook.grade_class import grade_all
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.judge_answers import Referee
from grading.judge.judge_submission import JUDGE

STOCK = ["Execute", "LimitOutput", "SaveAutoGrades", "AssignLatePenalties", "CheckCellMetadata"]
INTERVAL_S = 1.0


def many(n: int, at_a_time: int) -> dict:
    """Grade a class of `n`, and then again with nothing changed."""
    with (
        tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder,
        closing(small_class(Path(folder), n)) as classroom,
    ):
        began, memory = time.monotonic(), Memory()
        with memory:
            outcomes = list(grade_all(classroom, LAB, classroom.students(LAB), at_a_time=at_a_time))
        seconds, again = time.monotonic() - began, time.monotonic()
        unchanged = list(grade_all(classroom, LAB, classroom.students(LAB), at_a_time=at_a_time))
        return {
            "submissions": n,
            "at a time": at_a_time,
            "graded": sum(g.grade is not None for g in outcomes),
            "points as due": sum(g.grade is not None and g.grade.total == POINTS for g in outcomes),
            "seconds a submission": round(seconds / n, 2),
            "seconds a submission, nothing changed": round((time.monotonic() - again) / n, 3),
            "judged again": sum(bool(g.why) for g in unchanged),
            "MiB of all processes, in tenths of the time": memory.in_tenths(),
        }


def overhead(n: int) -> dict:
    """Measure what grading adds to running a notebook and judging its answers; ours and stock nbgrader in turn."""
    rows: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="shardlab-bench-") as folder:
        ours, stock = small_class(Path(folder, "ours"), n), small_class(Path(folder, "stock"), n, _stock())
        with closing(ours), closing(stock), Referee(LAB, "cpu") as referee:
            for student in ours.students(LAB):
                run_s, answers = _executed(ours, student, Path(folder))
                referee.prepare()
                time.sleep(5)  # until its launcher is ready, as it would be after a notebook has run
                judge_s = _seconds(lambda a=answers: referee.judge(a))
                ours_s = _seconds(lambda s=student: ours.autograde(LAB, s))
                stock_s = _seconds(lambda s=student: stock.api.autograde(LAB, s, force=True, create=True))
                rows.append({"run": run_s, "judge": judge_s, "ours": ours_s, "stock": stock_s})
    seconds = {name: round(median(row[name] for row in rows), 2) for name in rows[0]}
    over = round(median(row["ours"] - row["run"] - row["judge"] for row in rows), 2)
    ratio = round(median(row["ours"] / row["stock"] for row in rows), 2)
    return {"submissions": n, "seconds": seconds, "overhead": over, "ours over stock": ratio}


def _stock() -> Config:
    """Return settings for nbgrader's own execution, in which a check judges inside the notebook, as at home."""
    own = [f"nbgrader.preprocessors.{name}" for name in STOCK]
    return Config({"Autograde": {"autograde_preprocessors": own}, "Execute": {"timeout": 600}})


def _executed(classroom: Classroom, student: str, folder: Path) -> tuple[float, dict[str, bytes]]:
    """Run papermill alone, in no box. Return the seconds and what was handed in."""
    nb = classroom.sanitized(LAB, student)
    answers = folder / f"answers-{student}"
    answers.mkdir()
    nbformat.write(all_cells_run(nb), folder / "in.ipynb")
    with patch.dict(os.environ, {ANSWERS: str(answers)}), suppress(papermill.PapermillExecutionError):
        run = dict(parameters={"tier": "cpu", "seed": 0}, kernel_name="python3", language="python", progress_bar=False)
        seconds = _seconds(lambda: papermill.execute_notebook(folder / "in.ipynb", folder / "out.ipynb", **run))
    return seconds, {file.name: file.read_bytes() for file in answers.iterdir()}


def _seconds(work) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


class Memory(threading.Thread):
    """A thread that samples the memory of this process and all its descendants."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stopped, self._mib = threading.Event(), []

    def run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            self._mib.append(sum(map(held_bytes, family(os.getpid()))) / (1 << 20))

    def in_tenths(self) -> list[int]:
        """Return the maximum, in MiB, in each tenth of the time."""
        n = max(1, len(self._mib) // 10)
        return [round(max(self._mib[i : i + n])) for i in range(0, len(self._mib), n)]

    def __enter__(self) -> "Memory":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        self.join()
        JUDGE.close()
