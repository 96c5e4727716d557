"""Inspect what was handed in before anything else opens it, and keep of a notebook only what grading needs.

nbgrader follows links and copies whatever it finds. nbgrader, nbconvert and papermill each fail on metadata of a type
that they don't expect.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

import nbformat
import nbgrader.utils
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import parse_utc

MOST_FILES, MOST_BYTES = 1000, 200 << 20
MOST_NOTEBOOK_BYTES = 20 << 20  # read whole, which takes a hundred times its size in memory at worst
_PYTHON = {"name": "python", "pygments_lexer": "ipython3"}
_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}
_FLAGS = ("grade", "locked", "solution", "task")
_OF_NBGRADER = (*_FLAGS, "grade_id", "points", "schema_version", "cell_type", "checksum")
_AS_SAVED = "ask for the notebook as Jupyter saved it"

Stamp = list[tuple]  # each file's name, inode, size and times: it differs if a folder may have changed


class SubmissionError(ValueError):
    """A submission that can't be graded as it is; the message says what to ask its author for."""


def inspect(folder: Path) -> Stamp:
    """Return the folder's stamp. Raise SubmissionError unless it has only plain files, not too many or too large, with
    printable names."""
    if folder.is_symlink():
        raise SubmissionError(f"{ascii(folder.name)} is a link: ask for the folder itself")
    stamp, n_bytes = [], 0
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
        abouts = [(os.path.join(at, name), os.lstat(os.path.join(at, name))) for name in files]
        n_bytes += sum(about.st_size for _, about in abouts)
        stamp += [(name, a.st_ino, a.st_size, a.st_mtime_ns, a.st_ctime_ns) for name, a in abouts]
        if len(stamp) > MOST_FILES:
            raise SubmissionError(f"there are {len(stamp)} files, and may be {MOST_FILES}: ask for the notebook alone")
    if n_bytes > MOST_BYTES:
        size, most = _mib(n_bytes, MOST_BYTES)
        raise SubmissionError(f"its files have {size}, and may have {most}: ask for the notebook alone")
    _inspect_time(folder / "timestamp.txt")
    return sorted(entry for entry in stamp if os.path.basename(entry[0]) != "timestamp.txt")  # an instructor's file


def _inspect_time(file: Path) -> None:
    """Raise SubmissionError if nbgrader could not read when it was handed in; its own message does not say so."""
    if file.exists():
        with file.open("rb") as stream:
            text = stream.read(100).decode(errors="replace").strip()
        try:
            text and parse_utc(text)
        except Exception:
            raise SubmissionError(
                f"{file.name} has {text!a}, which is no time such as 2026-11-22 16:11:00 UTC: correct it, or remove it"
            ) from None


def _mib(*sizes: int) -> list[str]:
    return [f"{n >> 20:,} MiB" for n in sizes]


def read_notebook(folder: Path, lab: str) -> NotebookNode:
    """Return the notebook of an inspected folder. Raises SubmissionError, or what nbformat raises.

    A notebook under another name is refused: it may be an older copy, and only its author knows.
    """
    file = folder / f"{lab}.ipynb"
    if not file.is_file():
        raise SubmissionError(_other_names(folder, file.name))
    raw = file.read_bytes()
    if raw.startswith(b"\xef\xbb\xbf"):
        raise SubmissionError(f"{file.name} begins with a byte order mark, as some editors write it: {_AS_SAVED}")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise SubmissionError(f"{file.name} is not text in UTF-8: {_AS_SAVED}") from None
    try:
        nb = nbformat.reads(text, as_version=4)
    except Exception as error:  # nbformat checks little before it converts, so it may raise anything
        words = f"{type(error).__name__}: {error}"[:300]
        raise SubmissionError(f"{file.name} can't be read as a notebook ({words}): {_AS_SAVED}") from None
    if not isinstance(nb.metadata.get("language", ""), str):  # nbconvert reads it before any preprocessor runs
        raise SubmissionError(f"the metadata of {file.name} are damaged: {_AS_SAVED}")
    return nb


def _other_names(folder: Path, name: str) -> str:
    found = [Path(at, file).relative_to(folder) for at, _, files in os.walk(folder) for file in files]
    notebooks = sorted(str(f) for f in found if "ipynb" in f.name.lower() and ".ipynb_checkpoints" not in f.parts)
    if not notebooks:
        return f"there is no {name}, and no other notebook: ask for {name}"
    shown = ", ".join(map(ascii, notebooks[:5])) + (", ..." if len(notebooks) > 5 else "")
    which = "if that is the submission, move it to" if len(notebooks) == 1 else "move the one that is the submission to"
    return f"there is no {name}, but there is {shown}: {which} {name} in the same folder, and grade again"


class PlainFiles(NbGraderPreprocessor):
    """The same inspection inside nbgrader, for grading without `shardlab grade`."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        course, about = CourseDirectory(config=self.config), resources["nbgrader"]
        inspect(Path(course.format_path(course.submitted_directory, about["student"], about["assignment"])))
        return nb, resources


class PlainNotebook(NbGraderPreprocessor):
    """Keep cells with their source, their tags and nbgrader's metadata; drop outputs and all other metadata."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        cells = nb.get("cells")
        if not isinstance(cells, list):
            raise SubmissionError(f"it has no list of cells: {_AS_SAVED}")
        plain = [_plain(i, cell) for i, cell in enumerate(cells, 1)]
        return new_notebook(cells=plain, metadata={"language_info": dict(_PYTHON)}), resources


def _plain(number: int, cell: NotebookNode) -> NotebookNode:
    """Return a new cell with what grading needs. Raises SubmissionError if it is no cell, or its text is damaged."""
    kind, source = (cell.get(name) if isinstance(cell, dict) else None for name in ("cell_type", "source"))
    if not isinstance(kind, str) or kind not in _NEW_CELL or not isinstance(source, str):
        raise SubmissionError(f"cell {number} is no cell of a notebook: {_AS_SAVED}")
    if not _is_whole(source):
        raise SubmissionError(f"cell {number} contains half of a character: ask for it retyped")
    made = _NEW_CELL[kind](source)
    metadata = cell.get("metadata")
    tags, own = (metadata.get(name) if isinstance(metadata, dict) else None for name in ("tags", "nbgrader"))
    if isinstance(tags, list):
        whole = filter(_is_whole, tags)
        made.metadata["tags"] = list(dict.fromkeys(tag for tag in whole if tag and "," not in tag))  # as nbformat asks
    if isinstance(own, dict) and _is_nbgraders(own):
        made.metadata["nbgrader"] = {name: own[name] for name in _OF_NBGRADER if name in own}
    if _is_attached(pictures := cell.get("attachments")):
        made["attachments"] = pictures
    return made


def _is_nbgraders(metadata: dict) -> bool:
    """Return False if metadata are of types that nbgrader can't read. The cell then counts as the student's own."""
    right = _is_whole(metadata.get("grade_id")) and all(isinstance(metadata.get(f, False), bool) for f in _FLAGS)
    right &= all(_is_whole(metadata.get(name, "")) for name in ("cell_type", "checksum"))
    right &= isinstance(metadata.get("schema_version", 0), int)
    return right and (not metadata.get("grade") or type(metadata.get("points")) in (int, float))


def _is_whole(text) -> bool:
    """Return True if this is text that a file can hold. JSON may hold half of a character, and no file can."""
    try:
        return isinstance(text, str) and text.encode().decode() == text
    except UnicodeEncodeError:
        return False


def _is_attached(pictures) -> bool:
    """Return True if these are pictures in a Markdown cell, as Jupyter saves them."""
    forms = pictures.values() if isinstance(pictures, dict) and all(map(_is_whole, pictures)) else [None]
    return all(isinstance(form, dict) and all(map(_is_whole, (*form, *form.values()))) for form in forms)


def _is_ignored(filename: str, ignore_globs: list[str] | None = None) -> bool:
    """Replace nbgrader's `is_ignored`, which reads the name of the file's folder as a pattern, too."""
    return any(fnmatchcase(os.path.basename(filename), pattern) for pattern in ignore_globs or [])


nbgrader.utils.is_ignored = _is_ignored
