"""Hand an attack in, have it graded as anybody's submission, and see what it gained and what it changed."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

from grading.attacks import escapes, floods, lies, notebooks, reads
from grading.attacks.attack import CHECK, LAB, Attack
from grading.classroom import Classroom
from grading.samples import read_lab

ATTACKS: list[Attack] = [a for group in (reads, lies, floods, escapes, notebooks) for a in group.ATTACKS]


@dataclass(frozen=True)
class Outcome:
    """`points` None: it was not graded, for the reason in `words`."""

    attack: str
    points: float | None
    got: list[str]  # what it says that it got
    changed: list[str]  # outside of its box
    seconds: float
    words: str

    @property
    def failed(self) -> bool:
        return not self.points and not self.got and not self.changed


def prepare(classroom: Classroom) -> None:
    """There is another submission to read; and whatever stands ready for the whole class does so."""
    classroom.release(LAB)
    classroom.hand_in(LAB, "victim", read_lab("solutions", LAB))
    assert submit(Attack("nobody"), classroom).points == 0


def submit(attack: Attack, classroom: Classroom) -> Outcome:
    folder = classroom.submitted(LAB, attack.name)
    folder.mkdir(parents=True)
    attack.hand_in(folder)
    files, processes = _files(classroom, attack.name), _processes()
    began = time.monotonic()
    points, words, got = _grade(classroom, attack.name)
    seconds = time.monotonic() - began
    changed = [str(name) for name, _ in files.items() ^ _files(classroom, attack.name).items()]
    changed += (_processes() - processes).elements()
    shutil.rmtree(folder.parent)  # a pipe that nobody writes to, a file without end
    return Outcome(attack.name, points, got, sorted(changed), round(seconds, 1), words)


def _grade(classroom: Classroom, student: str) -> tuple[float | None, str, list[str]]:
    try:
        grade = classroom.autograde(LAB, student)
    except RuntimeError as error:
        return None, str(error), []
    nb = nbformat.read(classroom.autograded(LAB, student), as_version=4)
    printed = "\n".join(o.text for cell in nb.cells for o in cell.get("outputs", []) if o.output_type == "stream")
    verdict = next((v.text() for v in grade.verdicts if v.check == CHECK), "")
    return grade.total, verdict, [line[:200] for line in printed.split("\n") if line.startswith("GOT")]


def _files(classroom: Classroom, student: str) -> dict[str, str]:
    """What nobody's submission may change: the course but for this student's own, and temporary files."""
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
    """Ours by their commands, and the daemons that were left anywhere."""
    ours = {p.pid for p in psutil.Process().children(recursive=True)}
    lines = []
    for p in psutil.process_iter(["cmdline", "status"]):
        line = re.sub(r"shardlab-\S+", "", " ".join(p.info["cmdline"] or []))
        if p.info["status"] != psutil.STATUS_ZOMBIE and (p.pid in ours or escapes.DAEMON in line):
            lines.append(line)
    return Counter(lines)
