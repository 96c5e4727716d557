"""Collect from a hub's exchange, and release feedback to it, as nbgrader does, but on the guard against its students.

What a student hands in lies in a folder of the student's own, in which anything may change at any time. So a link is
not followed, and a file counts only if its owner is the student.
"""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from glob import escape
from pathlib import Path

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.utils import parse_utc

from grading.gradebook.error_advice import in_words
from grading.gradebook.inspect_files import MOST_BYTES, MOST_FILES, inspect
from grading.gradebook.normalise_notebook import SubmissionError

_BACKDATED_S = 600


class Collect(ExchangeCollect):
    """nbgrader's collecting: one student whose folder is odd is left out, told, and stops no other."""

    src_records: list[dict]

    def copy_files(self) -> None:
        everybody, problems = self.src_records, []
        submitted = Path(self.coursedir.format_path(self.coursedir.submitted_directory, ".", ".")).resolve()
        submitted.mkdir(parents=True, exist_ok=True)
        submitted.chmod(0o700)
        for record in everybody:
            self.src_records, folder = [record], Path(self.inbound_path, record["filename"])
            try:
                if self.check_owner:
                    _inspect_owner(folder, record["username"])
                inspect(folder)
                with tempfile.TemporaryDirectory(dir=submitted.parent, prefix=".new-") as new:
                    self._copied = _copied(folder, Path(new) / "copy")
                    _warn_of_the_time(self._copied, folder, self.log.warning)
                    super().copy_files()
            except Exception as error:  # a folder that changes meanwhile may raise anything, and stops no other
                problems.append(f"{record['username']!a} is not collected: {_why(error)}")
        self.src_records = everybody
        if problems:
            self.fail("\n".join(problems))

    def do_copy(self, src: str, dest: str, log: object = None) -> None:
        """Put the copy in its place: nbgrader has just deleted an earlier one."""
        self._copied.rename(dest)


class ReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's release: pages of students who handed in without the hub are left out, and the others released."""

    def copy_files(self) -> None:
        folder = Path(self.coursedir.format_path(self.coursedir.feedback_directory, ".", "."))
        for student in sorted(path for path in folder.iterdir() if path.is_dir()):
            pages = student / self.coursedir.assignment_id
            if self.coursedir.student_id not in ("*", "", student.name) or not pages.is_dir():
                continue
            if all((pages / name).is_file() for name in ("timestamp.txt", "submission_secret.txt")):
                self.src_path = escape(str(pages))
                super().copy_files()
            else:
                self.log.warning("%s handed in without the hub: hand the page over yourself, %s", student.name, pages)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ExchangeError) else in_words(error)


def _inspect_owner(folder: Path, student: str) -> None:
    try:
        owner = pwd.getpwuid(_owner(folder)).pw_name
    except KeyError:
        owner = "nobody on this machine"
    if owner != student:
        raise SubmissionError(f"its folder {folder.name} belongs to {owner}")


def _owner(folder: Path) -> int:
    return os.lstat(folder).st_uid


def _copied(folder: Path, to: Path) -> Path:
    """Copy the plain files of the folder's owner, for us alone to read. Links stay links, which grading refuses."""
    owner, left = _owner(folder), [MOST_BYTES]

    def copy(source: str, target: str) -> None:
        left.append(left[-1] - _copy_own(Path(source), Path(target), owner, left[-1]))
        if len(left) > MOST_FILES + 1:
            raise SubmissionError(f"it has more than {MOST_FILES} files")

    shutil.copytree(folder, to, symlinks=True, copy_function=copy)
    for at, _, _ in os.walk(to):
        os.chmod(at, 0o700)
    return to


def _warn_of_the_time(copy: Path, folder: Path, warn: Callable) -> None:
    """Tell of a timestamp that is missing, or older than its file: a student, or a restored backup, can write any."""
    says = copy / "timestamp.txt"
    if not says.is_file():
        warn("%a has no timestamp.txt, and counts as in time", folder.name)
        return
    written = (folder / "timestamp.txt").lstat().st_ctime
    at = parse_utc(says.read_text().strip()).replace(tzinfo=UTC).timestamp()
    if written - at > _BACKDATED_S:
        wrote = datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d %H:%M UTC")
        warn("%a says that it was handed in at %s, and was written at %s", folder.name, says.read_text().strip(), wrote)


def _copy_own(source: Path, target: Path, owner: int, most: int) -> int:
    """Copy a plain file of `owner`, and return its bytes. SubmissionError if it is none, also if it is exchanged at
    this moment, or has grown to more than `most` bytes since it was inspected."""
    try:
        opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise SubmissionError(f"{source.name!a} can't be read, or is a link") from None
    with os.fdopen(opened, "rb") as file:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != owner:
            raise SubmissionError(f"{source.name!a} is no plain file of the student's")
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
            n_bytes = 0
            while piece := file.read(min(1 << 20, most + 1 - n_bytes)):
                n_bytes += copy.write(piece)
            if n_bytes > most:
                raise SubmissionError(f"{source.name!a} grew while it was collected")
            return n_bytes
