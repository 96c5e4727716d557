"""Hand in an attack, have it graded like any submission, and see what it gained and what it changed."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import nbformat
import psutil
from traitlets.config import Config

from grading.attacks import (
    escapes,
    floods,
    hidden_copies,
    hostile_replies,
    keyrings_priorities_signals,
    lies,
    reads,
    tampered_notebooks,
)
from grading.attacks.attack import CHECK, LAB, Attack
from grading.gradebook.nbgrader_classroom import ROOT, Classroom
from grading.judge.judge_answers import HANGS
from grading.judge.session import LONGEST_DEADLINE_S
from grading.samples.sample import read_lab
from shardcourse.lessons.folders import copy_files

GROUPS = (
    reads,
    lies,
    hidden_copies,
    hostile_replies,
    floods,
    keyrings_priorities_signals,
    escapes,
    tampered_notebooks,
)
ATTACKS: list[Attack] = [a for group in GROUPS for a in group.ATTACKS]
CELL_S, NOTEBOOK_S = 20, 60
LONGEST_S = NOTEBOOK_S + HANGS * LONGEST_DEADLINE_S + 60  # a notebook that never ends, whose answer hangs, and a margin


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attack. `points` None: it was not graded, for the reason in `words`."""

    attack: str
    points: float | None
    got: list[str]  # what it printed that it got
    changed: list[str]  # what it changed outside its box
    seconds: float
    words: str

    @property
    def failed(self) -> bool:
        return not self.points and not self.got and not self.changed


@contextmanager
def course() -> Iterator[Classroom]:
    """Make a course with another submission to read, secrets in environment and keyring, and its own temporary files.

    One submission is graded first, so that everything that serves a whole class is running.
    """
    before, prefix = tempfile.tempdir, "shardlab-attacks-"
    with ExitStack() as stack:
        root, temporary = (stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)) for _ in range(2))
        stack.callback(setattr, tempfile, "tempdir", before)
        tempfile.tempdir = temporary
        stack.enter_context(patch.dict(os.environ, {"GRADER_TOKEN": "secret"}))
        stack.enter_context(keyrings_priorities_signals.a_key_of_the_grader())
        copy_files(ROOT / "solutions", Path(root, "solutions"))
        settings = Config({"RefereeExecutor": {"timeout": CELL_S, "notebook_timeout": NOTEBOOK_S}})
        classroom = stack.enter_context(closing(Classroom(Path(root), settings)))
        classroom.release(LAB)
        classroom.hand_in(LAB, "victim", read_lab("solutions", LAB))
        assert submit(Attack("nobody"), classroom).points == 0
        yield classroom


def submit(attack: Attack, classroom: Classroom) -> Outcome:
    folder = classroom.submitted(LAB, attack.name)
    folder.mkdir(parents=True)
    attack.hand_in(folder)
    files, processes = _files(classroom, attack.name), _processes()
    began = time.monotonic()
    points, words, got = _grade(classroom, attack)
    seconds = time.monotonic() - began
    changed = [str(name) for name, _ in files.items() ^ _files(classroom, attack.name).items()]
    changed += (_processes() - processes).elements()
    shutil.rmtree(folder.parent)  # it may contain a pipe that nobody writes to, or a file without end
    return Outcome(attack.name, points, got, sorted(changed), round(seconds, 1), words)


def _grade(classroom: Classroom, attack: Attack) -> tuple[float | None, str, list[str]]:
    """Return the points of the checks that it wants, the words of the first of them, and what it got."""
    try:
        grade = classroom.autograde(LAB, attack.name)
    except RuntimeError as error:
        return None, str(error), []
    nb = nbformat.read(classroom.autograded(LAB, attack.name), as_version=4)
    printed = "\n".join(o.text for cell in nb.cells for o in cell.get("outputs", []) if o.output_type == "stream")
    wanted = [v for v in grade.verdicts if v.check in attack.wants]
    points = sum(v.points for v in wanted) if wanted else grade.total + sum(w.points or 0 for w in grade.written)
    words = next((v.text() for v in wanted or grade.verdicts if v.check in (*attack.wants, CHECK)), "")
    return points, words, [line[:200] for line in printed.split("\n") if line.startswith("GOT")]


def _files(classroom: Classroom, student: str) -> dict[str, str]:
    """Digests of what no submission may change: the course except this student's own files, and temporary files."""
    own = {str(classroom.root / "grading" / where / student) for where in ("submitted", "autograded")}
    own_record = str(classroom.shelf.file(LAB, student).with_suffix(""))
    state = {name: "temporary" for name in os.listdir(tempfile.gettempdir()) if not name.startswith("shardlab-")}
    for at, folders, files in os.walk(classroom.root):
        folders[:] = [f for f in folders if os.path.join(at, f) not in own]
        for path in (Path(at, f) for f in files if not f.startswith("gradebook.db")):
            if str(path).startswith(f"{own_record}."):
                continue
            state[str(path.relative_to(classroom.root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return state


def _processes() -> Counter[str]:
    """Commands of our descendants, and of daemons left anywhere."""
    ours = {p.pid for p in psutil.Process().children(recursive=True)}
    lines = []
    for p in psutil.process_iter(["cmdline", "status"]):
        line = re.sub(r"shardlab-\S+", "", " ".join(p.info["cmdline"] or []))
        if p.info["status"] != psutil.STATUS_ZOMBIE and (p.pid in ours or escapes.DAEMON in line):
            lines.append(line)
    return Counter(lines)
