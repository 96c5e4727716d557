"""A queue of submissions to judge, kept in files, so that a night's grading survives the death of any process.

grading/queue/<lab>/<student>.ipynb   a submission as nbgrader would run it; deleted when it is judged
grading/queue/<lab>/<student>.lock    locked by the worker that judges it, and unlocked by the system if that dies;
                                      contains the notebook's digest, and how many of its workers died
grading/queue/<lab>/<student>.problem why it could not be judged

Locks are flock(2): on one machine, or on a shared file system between several (NFS 4).
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import nbformat

from grading.gradebook.result_cache import digest_of, write_whole

_PATIENCE_S = 2.0
MOST_TRIES = 3  # times that a worker may die while it judges the same submission
TOO_OFTEN = "look at what it does to the machine, and then grade with --again"


class Queue:
    def __init__(self, folder: Path, lab: str) -> None:
        self.folder, self.lab = folder / lab, lab

    def put(self, student: str, nb: nbformat.NotebookNode, *, anew: bool = False) -> None:
        """Add a submission. `anew`: forget the workers that died while judging the very same notebook."""
        digest, lock = digest_of(nb), self._file(student, "lock")
        tried = lock.read_text() if lock.exists() else ""
        self.clear(student)
        lock.write_text(tried if tried.startswith(digest) and not anew else f"{digest}\n")
        write_whole(self._file(student, "ipynb"), nbformat.writes(nb))

    def clear(self, student: str) -> None:
        """Remove a submission with its problem and its tries. The lock file stays: a process may hold it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for kind in ("ipynb", "problem"):
            self._file(student, kind).unlink(missing_ok=True)
        self._file(student, "lock").write_text("")

    def students(self) -> list[str]:
        """Students whose submission waits or is being judged."""
        return sorted(path.stem for path in self.folder.glob("*.ipynb"))

    def problem(self, student: str) -> str | None:
        with suppress(FileNotFoundError):
            return self._file(student, "problem").read_text(encoding="utf-8")

    @contextmanager
    def claim(self, student: str) -> Iterator[nbformat.NotebookNode | None]:
        """Yield the notebook to judge, which then leaves the queue unless there was an error; None if another worker
        took it."""
        with self._file(student, "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not self._file(student, "ipynb").exists():
                yield None
                return
            lock.seek(0)
            tries = lock.read().count("+")
            if tries >= MOST_TRIES:
                self.fail(student, f"whoever judged it was ended {tries} times: {TOO_OFTEN}")
                yield None
                return
            lock.write("+")
            lock.flush()
            try:
                yield nbformat.read(self._file(student, "ipynb"), as_version=4)
            finally:  # with or without an error, no worker died
                lock.truncate(0)
            self._file(student, "ipynb").unlink(missing_ok=True)

    def fail(self, student: str, words: str) -> None:
        write_whole(self._file(student, "problem"), words)
        self._file(student, "ipynb").unlink(missing_ok=True)

    def _file(self, student: str, kind: str) -> Path:
        return self.folder / f"{student}.{kind}"


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
    """Lock, with a moment's patience: workers of a killed process lock briefly to see whether it lives."""
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
