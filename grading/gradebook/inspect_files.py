"""Inspect what was handed in before anything else opens it, and read its notebook in the known form.

nbgrader follows links and copies whatever it finds. nbgrader, nbconvert and papermill each fail on metadata of a type
that they don't expect.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

import nbformat
import nbgrader.utils
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc

from grading.gradebook.limited import LimitError, limited
from grading.gradebook.normalise_notebook import SubmissionError, is_blank, normalise_notebook

MOST_FILES, MOST_BYTES = 1000, 200 << 20  # files: and as many folders
DEEPEST = 30  # folders in folders: Python's own walk fails at a thousand
MOST_NOTEBOOK_BYTES = 20 << 20
LONGEST_TIME = 1000  # bytes of timestamp.txt

Stamp = list[tuple]  # each file's name, inode, size and times: it differs if a folder may have changed


def inspect(folder: Path) -> Stamp:
    """Return the folder's stamp. Raise SubmissionError unless it has only plain files, not too many or too large, with
    printable names."""
    if folder.is_symlink():
        raise SubmissionError(f"{ascii(folder.name)} is a link: ask for the folder itself")
    stamp, n_bytes, n_folders = [], 0, 0
    for at, folders, files in os.walk(folder, onerror=_refuse_unreadable):  # links are not followed
        n_folders += len(folders)
        for n, what in ((len(stamp) + len(files), "files"), (n_folders, "folders")):
            if n > MOST_FILES:
                raise SubmissionError(f"there are {n} {what}, and may be {MOST_FILES}: ask for the notebook alone")
        if len(Path(at).relative_to(folder).parts) > DEEPEST:
            raise SubmissionError(f"it has more than {DEEPEST} folders in each other: ask for the notebook alone")
        for name in (*folders, *files):
            path = Path(at, name)
            shown = ascii(str(path.relative_to(folder)))
            if not name.isprintable():
                raise SubmissionError(f"{shown} has a name that cannot be shown: ask for it under another")
            if path.is_symlink():
                raise SubmissionError(f"{shown} is a link: ask for the file itself")
            if name in files and not path.is_file():
                raise SubmissionError(f"{shown} is no plain file: ask for the submission without it")
            if name.endswith(".ipynb") and (n := os.lstat(path).st_size) > MOST_NOTEBOOK_BYTES:
                size, most = _mib(n, MOST_NOTEBOOK_BYTES)
                raise SubmissionError(f"{shown} has {size}, and may have {most}: ask for it without its outputs")
        abouts = [(os.path.join(at, name), os.lstat(os.path.join(at, name))) for name in files]
        n_bytes += sum(about.st_size for _, about in abouts)
        stamp += [(name, a.st_ino, a.st_size, a.st_mtime_ns, a.st_ctime_ns) for name, a in abouts]
    if n_bytes > MOST_BYTES:
        size, most = _mib(n_bytes, MOST_BYTES)
        raise SubmissionError(f"its files have {size}, and may have {most}: ask for the notebook alone")
    _inspect_time(folder / "timestamp.txt")
    return sorted(entry for entry in stamp if os.path.basename(entry[0]) != "timestamp.txt")  # an instructor's file


def _refuse_unreadable(error: OSError) -> None:
    name = ascii(os.path.basename(error.filename))
    raise SubmissionError(f"the folder {name} can't be read ({error.strerror}): make it readable, and grade again")


def _inspect_time(file: Path) -> None:
    """Raise SubmissionError if nbgrader could not read when it was handed in; its own message does not say so.

    On a hub a pipe may have taken the file's place since it was inspected: opening it does not wait for a writer.
    """
    if file.exists():
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            raw = stream.read(LONGEST_TIME) or b""
        text = raw.decode(errors="replace").strip()
        try:
            if len(raw) == LONGEST_TIME:
                raise ValueError("the rest was not read")
            text and parse_utc(text)
        except Exception:
            shown = f"{file.name} has {text[:100]!a}"
            raise SubmissionError(
                f"{shown}, which is no time such as 2026-11-22 16:11:00 UTC: correct it, or remove it"
            ) from None


def _mib(*sizes: int) -> list[str]:
    return [f"{n >> 20:,} MiB" for n in sizes]


def read_submission(folder: Path, lab: str, released: NotebookNode) -> NotebookNode:
    """Return the notebook of an inspected folder in the known form. Raises SubmissionError if it has none.

    A notebook under another name is refused: it may be an older copy, and only its author knows.
    """
    file, others = folder / f"{lab}.ipynb", _other_notebooks(folder, lab)
    if not file.is_file():
        raise SubmissionError(f"there is no {file.name}, {_which(others, file.name)}")
    try:
        nb = limited(normalise_notebook, file.read_bytes(), lab, released)
    except LimitError as error:
        raise SubmissionError(f"{file.name} can't be read: {error}; ask for it without its outputs") from None
    others = [other for other in others if not other.lower().endswith(".json")]  # data
    if others and is_blank(nb, released):
        raise SubmissionError(f"nothing was filled in in {file.name}, {_which(others, file.name)}")
    nb.metadata.shardlab.repairs += [
        f"{ascii(name)} beside the notebook is not used: code belongs into the notebook." for name in _programs(folder)
    ]
    return nb


def _other_notebooks(folder: Path, lab: str) -> list[str]:
    found = [Path(at, file).relative_to(folder) for at, _, files in os.walk(folder) for file in files]
    named = [f for f in found if "ipynb" in f.name.lower() or f.suffix.lower() in (".zip", ".json")]
    return sorted(str(f) for f in named if str(f) != f"{lab}.ipynb" and not any(map(_of_a_program, f.parts)))


def _of_a_program(name: str) -> bool:
    """Return True for a name that programs give to what they put beside a student's files: checkpoints, old states."""
    return name.startswith((".", "~$")) or name == "__MACOSX"


def _which(others: list[str], name: str) -> str:
    """Return what lies beside a notebook that is missing or blank, and what to do."""
    if not others:
        return f"and no other notebook: ask for {name}"
    there = ", ".join(map(ascii, others[:5])) + (", ..." if len(others) > 5 else "")
    which = "if that is the submission, move it to" if len(others) == 1 else "move the one that is the submission to"
    unpacked = " (unpack a zip first)" if any(other.lower().endswith(".zip") for other in others) else ""
    return f"but there is {there}: {which} {name} in the same folder{unpacked}, and grade again"


def _programs(folder: Path) -> list[str]:
    """Return some of the Python files beside the notebook, which nbgrader ignores as it does those of solutions/."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.is_file())[:5]


def released_notebook(course: Path, lab: str) -> NotebookNode:
    """Return the lab as it was released. SubmissionError if it was not."""
    file = course / "labs" / lab / f"{lab}.ipynb"
    try:
        return nbformat.read(file, as_version=4)
    except FileNotFoundError:
        raise SubmissionError(f"{lab} was not released: run `shardlab release {lab}`, and grade again") from None


class SubmissionReader(NotebookExporter):
    """What nbgrader reads submissions with: it inspects the folder, and puts the notebook into the known form."""

    def from_file(self, file_stream: TextIO, resources: dict | None = None, **kw: Any) -> tuple[Any, dict]:
        course, about, folder = (
            CourseDirectory(config=self.config),
            resources["nbgrader"],
            Path(file_stream.name).parent,
        )
        lab = about["assignment"]
        if folder != Path(course.format_path(course.submitted_directory, about["student"], lab)):
            return super().from_file(file_stream, resources, **kw)  # as it ran
        inspect(folder)
        nb = read_submission(folder, lab, released_notebook(Path(course.root), lab))
        return self.from_notebook_node(nb, resources, **kw)


def _is_ignored(filename: str, ignore_globs: list[str] | None = None) -> bool:
    """Replace nbgrader's `is_ignored`, which reads the name of the file's folder as a pattern, too."""
    return any(fnmatchcase(os.path.basename(filename), pattern) for pattern in ignore_globs or [])


nbgrader.utils.is_ignored = _is_ignored
