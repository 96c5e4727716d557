"""Inspect submitted files before anything opens them: nbgrader follows links and copies whatever it finds."""

import os
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

MOST_FILES, MOST_BYTES = 1000, 200 << 20
MOST_NOTEBOOK_BYTES = 20 << 20  # read whole, which takes a hundred times its size in memory at worst


class SubmissionError(ValueError):
    """A submission that can't be graded as it is; the message says what to ask its author for."""


def inspect(folder: Path) -> None:
    """Raise SubmissionError unless the folder has only plain files, not too many or too large, with printable names."""
    if folder.is_symlink():
        raise SubmissionError(f"{ascii(folder.name)} is a link: ask for the folder itself")
    n_files = n_bytes = 0
    for at, folders, files in os.walk(folder):  # links are not followed
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
        n_files += len(files)
        n_bytes += sum(os.lstat(os.path.join(at, name)).st_size for name in files)
    if n_files > MOST_FILES:
        raise SubmissionError(f"there are {n_files} files, and may be {MOST_FILES}: ask for the notebook alone")
    if n_bytes > MOST_BYTES:
        size, most = _mib(n_bytes, MOST_BYTES)
        raise SubmissionError(f"its files have {size}, and may have {most}: ask for the notebook alone")


def _mib(*sizes: int) -> list[str]:
    return [f"{n >> 20:,} MiB" for n in sizes]


class PlainFiles(NbGraderPreprocessor):
    """The same inspection inside nbgrader, for grading without `shardlab grade`."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        course, about = CourseDirectory(config=self.config), resources["nbgrader"]
        inspect(Path(course.format_path(course.submitted_directory, about["student"], about["assignment"])))
        return nb, resources
