"""A queue of submissions to judge, kept in files, so that a night's grading survives the death of any process.

grading/queue/<lab>/<student>.task    a folder with a submission as nbgrader would run it; deleted when it is judged:
                                      notebook.ipynb, files/, and task.json with its checks and digests
grading/queue/<lab>/<student>.lock    locked by the worker that judges it, and unlocked by the system if that dies;
                                      contains the submission's digest, and a + for each worker that died of it
grading/queue/<lab>/<student>.problem why it could not be judged
grading/queue/<lab>/.drafts/          tasks that are being written or deleted

Locks are flock(2): on one machine, or on a shared file system between several (NFS 4).
"""

import faulthandler
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import nbformat

from grading.gradebook.result_cache import write_whole
from grading.judge.judge_submission import Submission

_PATIENCE_S = 2.0
MOST_TRIES = 3  # times that a worker may die while it judges the same submission
TOO_OFTEN = "look at what it does to the machine, and then grade with --again"


@dataclass(frozen=True)
class Task:
    """A submission that waits, and the digests of what is judged (`result_cache.made_of`)."""

    submission: Submission
    made_of: dict[str, str]


class Queue:
    """The queue of a lab. One process at a time puts submissions into it; any number of workers take them."""

    def __init__(self, folder: Path, lab: str) -> None:
        self.folder, self.lab = folder / lab, lab
        self._drafts = self.folder / ".drafts"

    def tidy(self) -> None:
        """Remove what processes left behind if they were killed while they wrote or deleted a task."""
        shutil.rmtree(self._drafts, ignore_errors=True)

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new folder with an empty folder `files`, for `put` to move. If it was not moved, it is removed."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._drafts))
        try:
            (folder / "files").mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, student: str, task: Task, *, anew: bool = False) -> None:
        """Add a submission whose files are those of a draft: the draft itself moves into the queue.

        `anew`: forget the workers that died while judging the very same submission.
        """
        draft, submission = task.submission.files.parent, task.submission
        (draft / "notebook.ipynb").write_text(nbformat.writes(submission.notebook), encoding="utf-8")
        record = {"checks": list(submission.checks.items()), "made_of": task.made_of}
        (draft / "task.json").write_text(json.dumps(record), encoding="utf-8")
        digest, lock = task.made_of["submission"], self._file(student, "lock")
        tried = lock.read_text() if lock.exists() else ""
        self.clear(student)
        lock.write_text(tried if tried.startswith(digest) and not anew else f"{digest}\n")
        draft.rename(self._file(student, "task"))

    def clear(self, student: str) -> None:
        """Remove a submission with its problem and its tries. The lock file stays: a process may hold it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove(student)
        self._file(student, "problem").unlink(missing_ok=True)
        self._file(student, "lock").write_text("")

    def students(self) -> list[str]:
        """Return the students whose submissions wait or are being judged."""
        return sorted(path.stem for path in self.folder.glob("*.task"))

    def problem(self, student: str) -> str | None:
        with suppress(FileNotFoundError):
            return self._file(student, "problem").read_text(encoding="utf-8")

    @contextmanager
    def claim(self, student: str) -> Iterator[Task | None]:
        """Yield the task to judge, which then leaves the queue unless there was an error; None if another worker
        took it."""
        with self._file(student, "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not self._file(student, "task").exists():
                yield None
                return
            tries = _note_try(lock)
            if tries >= MOST_TRIES:
                self.fail(student, f"whoever judged it was ended {tries} times: {TOO_OFTEN}")
                yield None
                return
            task = self._readable_task(student)
            try:
                with _crash_noted(lock):
                    yield task
            finally:  # with or without an error, no worker died
                lock.truncate(0)
            if task and self._holds(student, task):
                self._remove(student)

    def fail(self, student: str, words: str, task: Task | None = None) -> None:
        """Say why a submission can't be judged, and remove it, unless another one has taken the place of `task`."""
        if task is None or self._holds(student, task):
            write_whole(self._file(student, "problem"), words)
            self._remove(student)

    def _holds(self, student: str, task: Task) -> bool:
        """Return True unless another submission took the task's place while it was judged.

        A job of a killed grader may still judge what the next call of `grade` replaces.
        """
        with suppress(OSError, ValueError):
            return json.loads((self._file(student, "task") / "task.json").read_bytes())["made_of"] == task.made_of
        return False

    def _readable_task(self, student: str) -> Task | None:
        try:
            return self._task(student)
        except Exception as error:  # it belongs to this submission, and stops no other
            self.fail(student, f"{type(error).__name__}: {error}")
            return None

    def _task(self, student: str) -> Task:
        folder = self._file(student, "task")
        record = json.loads((folder / "task.json").read_bytes())
        nb = nbformat.read(folder / "notebook.ipynb", as_version=4)
        return Task(Submission(self.lab, nb, dict(record["checks"]), folder / "files"), record["made_of"])

    def _remove(self, student: str) -> None:
        """Remove a task in one step, so that no worker ever sees half a task."""
        with suppress(FileNotFoundError), self.draft() as trash:
            self._file(student, "task").rename(trash / "task")

    def _file(self, student: str, kind: str) -> Path:
        return self.folder / f"{student}.{kind}"


def _note_try(lock: TextIO) -> int:
    """Return how many workers died of a submission. Note that another worker begins, and how the machine is now.

    A worker that somebody ended, as with `kill` or `scancel`, does not count: it died of the submission if it crashed,
    if the system killed a process for want of memory meanwhile, or if the machine went down.
    """
    lock.seek(0)
    digest, *notes = lock.read().split("\n", 1)
    before, _, began = "".join(notes).partition("?")
    died = bool(began) and began != _machine()
    tries = before.count("+") + died
    lock.truncate(0)
    lock.write(f"{digest}\n{'+' * tries}?{_machine()}")
    lock.flush()
    return tries


def _machine() -> str:
    """Return what changes when the machine starts, or its memory runs out."""
    said = ""
    with suppress(OSError):
        said += Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        said += " ".join(re.findall(r"^oom_kill \d+", Path("/proc/vmstat").read_text(), re.M))
    return said


@contextmanager
def _crash_noted(lock: TextIO) -> Iterator[None]:
    """Let Python write into the lock's file if this process crashes (SIGSEGV, SIGABRT), so that it counts."""
    if ours := not faulthandler.is_enabled():
        faulthandler.enable(lock, all_threads=False)
    try:
        yield
    finally:
        if ours:
            faulthandler.disable()


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Hold the lock `file` during the block. SystemExit if another process holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+") as lock:
        if not _locked_soon(lock):
            lock.seek(0)
            holder = lock.read().strip() or "?"
            raise SystemExit(f"somebody is grading this course already (process {holder}): wait, or end it")
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _locked_soon(lock: TextIO) -> bool:
    """Try to lock, for a short time: workers of a killed process lock briefly to see whether that process lives."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


def held(file: Path) -> bool:
    """Return True if a process holds `alone(file)`."""
    with file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
