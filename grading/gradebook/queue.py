"""What waits to be judged, in files, so that a night's grading survives the death of anybody.

grading/queue/<lab>/<student>.ipynb   a submission as nbgrader would run it; gone once it is judged
grading/queue/<lab>/<student>.lock    held by whoever judges it, and let go by the system when they die; holds which
                                      notebook it was, and how often somebody who judged it died
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
MOST_TRIES = 3  # of a submission during which whoever judged it died
TOO_OFTEN = "look at what it does to the machine, and then grade with --again"


class Queue:
    def __init__(self, folder: Path, lab: str) -> None:
        self.folder, self.lab = folder / lab, lab

    def put(self, student: str, nb: nbformat.NotebookNode, *, anew: bool = False) -> None:
        """`anew`: whoever died while judging the very same notebook shall not count."""
        digest, lock = digest_of(nb), self._file(student, "lock")
        tried = lock.read_text() if lock.exists() else ""
        self.clear(student)
        lock.write_text(tried if tried.startswith(digest) and not anew else f"{digest}\n")
        write_whole(self._file(student, "ipynb"), nbformat.writes(nb))

    def clear(self, student: str) -> None:
        """Nothing waits, nothing went wrong, and nobody has tried. The lock stays: somebody may hold it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for kind in ("ipynb", "problem"):
            self._file(student, kind).unlink(missing_ok=True)
        self._file(student, "lock").write_text("")

    def students(self) -> list[str]:
        """Who waits, or is being judged."""
        return sorted(path.stem for path in self.folder.glob("*.ipynb"))

    def problem(self, student: str) -> str | None:
        with suppress(FileNotFoundError):
            return self._file(student, "problem").read_text(encoding="utf-8")

    @contextmanager
    def claim(self, student: str) -> Iterator[nbformat.NotebookNode | None]:
        """The notebook to judge; None if somebody else does so, or has. It leaves the queue when this ends in peace."""
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
            finally:  # with or without an error: nobody died
                lock.truncate(0)
            self._file(student, "ipynb").unlink(missing_ok=True)

    def fail(self, student: str, words: str) -> None:
        write_whole(self._file(student, "problem"), words)
        self._file(student, "ipynb").unlink(missing_ok=True)

    def _file(self, student: str, kind: str) -> Path:
        return self.folder / f"{student}.{kind}"


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Held as long as this process lives. SystemExit if another one has it."""
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
    """A moment's patience with workers of a killed process, which look whether it lives."""
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
    """Does somebody hold `alone(file)`?"""
    with file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
