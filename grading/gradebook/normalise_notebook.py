"""Normalise a submitted notebook: put it into one known form, before nbformat, nbgrader or nbconvert read it.

In this form the text is whole, each cell of the lab is there once and has the lab's own metadata, locked code is as it
was released, and nothing else is left but the sources of the student's own cells. Each repair is a sentence, for the
student and the instructor. The file that was handed in stays as it is.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from grading.gradebook.notebook_json import AS_SAVED, SubmissionError, parsed

MOST_CELLS, MOST_TEXT = 1_000, 1 << 19  # text: characters of all cells; a lab has 50 cells and 28,000 characters
_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}
_OF_NBFORMAT_3 = {"heading": "markdown", "html": "markdown"}
_OF_PAPERMILL = {"injected-parameters", "papermill-error-cell-tag"}
_BACKEND = re.compile(r"^([ \t]*%matplotlib)(?:[ \t]+(?!inline|--list)\S.*|[ \t]*)$", re.M)
_USES = re.compile(r"(\b(?:matplotlib|mpl)\.use\(|\b(?:plt|pyplot)\.switch_backend\()[ \t]*(\"|')\w+\2")
_CONFLICT = re.compile(r"^<{7} .*^>{7} ", re.M | re.S)
_PICTURE = re.compile(r"attachment:([^\s)\"']+)")


@dataclass
class _Cell:
    """A cell as it was handed in. `name`: the lab's name of it (nbgrader's grade_id), "" for a student's own."""

    kind: str
    source: str
    name: str
    tags: set[str] = field(default_factory=set)
    pictures: dict = field(default_factory=dict)


class _Lab:
    """The cells of a lab as it was released, by name."""

    def __init__(self, released: NotebookNode) -> None:
        self.cells = {c.metadata.nbgrader.grade_id: c for c in released.cells if "nbgrader" in c.metadata}

    def is_(self, what: str, name: str) -> bool:
        return bool(name) and bool(self.cells[name].metadata.nbgrader.get(what))

    def gave(self, cell: _Cell) -> bool:
        """Return True if the cell's text is the lab's own. Editors change the spaces at the ends of lines."""
        return bool(cell.name) and _stripped(cell.source) == _stripped(self.cells[cell.name].source)


def normalise_notebook(raw: bytes, lab: str, released: NotebookNode) -> NotebookNode:
    """Return a notebook file in the known form, with its repairs. SubmissionError if it is no notebook of this lab."""
    given, repairs = _Lab(released), []
    nb = parsed(raw, f"{lab}.ipynb", repairs)
    cells = _recognised(_without_papermills(_cells_of(nb, lab, given, repairs), repairs), given)
    if not any(given.is_("grade", cell.name) or given.is_("solution", cell.name) for cell in cells):
        raise SubmissionError(f"{lab}.ipynb has no task and no check of {lab}: ask for the notebook of this lab")
    cells = _complete(_as_released(_once(cells, given, repairs), given, repairs), given, repairs)
    cells = _checks_below(cells, given, repairs)
    made = [_made(i, cell, given) for i, cell in enumerate(_that_can_be_shown(cells, repairs))]
    about = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}, "shardlab": {"repairs": repairs}}
    return new_notebook(cells=made, metadata=about)


def repairs_of(nb: NotebookNode) -> list[str]:
    """Return what was repaired in a notebook that was put into the known form."""
    return list(nb.metadata.get("shardlab", {}).get("repairs", []))


def is_blank(nb: NotebookNode, released: NotebookNode) -> bool:
    """Return True if a notebook in the known form has no task that was filled in, and no cell that was added."""
    given = _Lab(released)
    cells = [_Cell(c.cell_type, c.source, c.metadata.get("nbgrader", {}).get("grade_id", "")) for c in nb.cells]
    return all(given.gave(c) if given.is_("solution", c.name) else c.name or not c.source.strip() for c in cells)


def _cells_of(nb: dict, lab: str, given: _Lab, repairs: list[str]) -> list[_Cell]:
    sheets = nb.get("worksheets")
    if isinstance(sheets, list) and all(isinstance(s, dict) and isinstance(s.get("cells"), list) for s in sheets):
        nb = {"cells": [cell for sheet in sheets for cell in sheet["cells"]]}
        repairs.append("The file has an old form, nbformat 3: it was read as nbformat 4.")
    found = nb.get("cells")
    if not isinstance(found, list):
        raise SubmissionError(f"{lab}.ipynb has no list of cells: {AS_SAVED}")
    if len(found) > MOST_CELLS:
        raise SubmissionError(f"it has {len(found):,} cells, and may have {MOST_CELLS:,}: ask for it with fewer")
    cells = [_read(number, cell, given) for number, cell in enumerate(found, 1)]
    if (n := sum(len(cell.source) for cell in cells)) > MOST_TEXT:
        raise SubmissionError(f"its cells have {n:,} characters, and may have {MOST_TEXT:,}: ask for shorter ones")
    for number, cell in enumerate(cells, 1):
        whole = cell.source.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if whole.count("\ufffd") > cell.source.count("\ufffd"):
            repairs.append(f"Cell {number} had half of a character: \ufffd stands in its place.")
        if _CONFLICT.search(whole):
            repairs.append(f"Cell {number} has the marks of a merge conflict of git.")
        cell.source = whole
    if any("\r" in cell.source for cell in cells):
        repairs.append("Lines ended as on Windows: they now end as on Linux.")
        cells = [replace(c, source=c.source.replace("\r\n", "\n").replace("\r", "\n")) for c in cells]
    return cells


def _read(number: int, cell: object, given: _Lab) -> _Cell:
    """Return a cell; its name and tags count only if they have the right types."""
    raw = cell if isinstance(cell, dict) else {}
    kind, source = raw.get("cell_type"), raw.get("source", raw.get("input"))  # `input`: in nbformat 3
    kind, source = _OF_NBFORMAT_3.get(kind, kind) if isinstance(kind, str) else "", "" if source is None else source
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if kind not in _NEW_CELL or not isinstance(source, str):
        raise SubmissionError(f"cell {number} is no cell of a notebook: {AS_SAVED}")
    metadata = raw.get("metadata")
    own, tags = (metadata.get(key) if isinstance(metadata, dict) else None for key in ("nbgrader", "tags"))
    name = own.get("grade_id") if isinstance(own, dict) else ""
    known = name if isinstance(name, str) and name in given.cells else ""
    read = _Cell(kind, source, known, {t for t in tags if isinstance(t, str)} if isinstance(tags, list) else set())
    if kind == "markdown" and _are_pictures(pictures := raw.get("attachments")):
        read.pictures = pictures
    return read


def _are_pictures(attachments: object) -> bool:
    forms = attachments.values() if isinstance(attachments, dict) else [None]
    return all(isinstance(form, dict) and form and all(map(_is_ascii, (*form, *form.values()))) for form in forms)


def _is_ascii(text: object) -> bool:
    return isinstance(text, str) and text.isascii()


def _without_papermills(cells: list[_Cell], repairs: list[str]) -> list[_Cell]:
    kept = [cell for cell in cells if not cell.tags & _OF_PAPERMILL]
    if len(kept) < len(cells):
        repairs.append("Cells that papermill had added were taken out.")
    return kept


def _recognised(cells: list[_Cell], given: _Lab) -> list[_Cell]:
    """Find locked cells that have lost their metadata, as other programs' copies do, by their text."""
    there = {cell.name for cell in cells}
    missing = {_signs(c.source): n for n, c in given.cells.items() if given.is_("locked", n) and n not in there}
    return [cell if cell.name else replace(cell, name=missing.pop(_signs(cell.source), "")) for cell in cells]


def _once(cells: list[_Cell], given: _Lab, repairs: list[str]) -> list[_Cell]:
    """Keep one copy of each of the lab's cells. Another that was changed is one of the student's own."""
    for name, n in Counter(cell.name for cell in cells if cell.name).items():
        if n == 1:
            continue
        copies = [cell for cell in cells if cell.name == name]
        if given.is_("solution", name):
            kept, which = ([c for c in copies if not given.gave(c)] or copies)[-1], "last one that was filled in"
        elif given.is_("grade", name):
            kept, which = copies[-1], "last one"
        else:
            kept, which = copies[0], "first one"
        cells = [c for c in cells if c is kept or c.name != name or not given.gave(c)]
        cells = [c if c is kept or c.name != name else replace(c, name="") for c in cells]
        repairs.append(f"Cell `{name}` was there {n} times: the {which} counts.")
    return cells


def _as_released(cells: list[_Cell], given: _Lab, repairs: list[str]) -> list[_Cell]:
    """Restore locked cells. Code to which something was only added, such as an import, runs once more with it."""
    made: list[_Cell] = []
    for cell in cells:
        released = given.cells.get(cell.name)
        if released and cell.kind != released.cell_type:
            repairs.append(f"Cell `{cell.name}` was a {cell.kind} cell: it is a {released.cell_type} cell again.")
            cell = replace(cell, kind=released.cell_type)
        made.append(cell)
        if given.is_("locked", cell.name) and not given.gave(cell):
            words = f"The locked cell `{cell.name}` is not as it was released: the released one took its place"
            before, after, runs = *_added(cell, released, given), ""
            if before.strip() or after.strip():
                runs = ", and what was added runs in a cell of its own."
            elif _may_run_again(cell, released, given):
                after, runs = cell.source, ", and the one with additions runs after it."
            repairs.append(words + (runs or "."))
            made[-1:] = [replace(cell, name="", source=before)] if before.strip() else []
            made += [replace(cell, source=released.source)]
            made += [replace(cell, name="", source=after)] if after.strip() else []
    return made


def _may_run_again(cell: _Cell, released: NotebookNode, given: _Lab) -> bool:
    """Return True if a locked cell of code has all that was released and more, and runs twice without harm."""
    code = cell.kind == "code" and not given.is_("grade", cell.name) and not released.metadata.get("tags")
    return code and _has_all_lines(cell.source, released.source)


def _added(cell: _Cell, released: NotebookNode, given: _Lab) -> tuple[str, str]:
    """Return the code before and after a check that stands in its cell, as when two cells were merged; else nothing."""
    check = released.source.strip()
    before, found, after = cell.source.partition(check)
    return (before, after) if found and cell.kind == "code" and given.is_("grade", cell.name) else ("", "")


def _checks_below(cells: list[_Cell], given: _Lab, repairs: list[str]) -> list[_Cell]:
    """Move a check that stands above a task that comes before it in the lab to below this task."""
    order, moved = list(given.cells), []
    for check in [cell for cell in cells if cell.kind == "code" and given.is_("grade", cell.name)]:
        tasks = {name for name in order[: order.index(check.name)] if given.is_("solution", name)}
        last = max((i for i, cell in enumerate(cells) if cell.name in tasks), default=-1)
        if last > (place := next(i for i, cell in enumerate(cells) if cell is check)):
            cells = [*cells[:place], *cells[place + 1 : last + 1], check, *cells[last + 1 :]]
            moved.append(f"`{check.name}`")
    repairs += (
        [f"These checks stood above a task that they need, and run below it: {', '.join(moved)}."] if moved else []
    )
    return cells


def _complete(cells: list[_Cell], given: _Lab, repairs: list[str]) -> list[_Cell]:
    """Put locked code that was deleted back, before the next of the lab's cells."""
    cells, place = list(cells), len(cells)
    for name, released in reversed(given.cells.items()):
        there = [i for i, cell in enumerate(cells) if cell.name == name]
        if there:
            place = there[0]
        elif given.is_("locked", name) and released.cell_type == "code":
            cells.insert(place, _Cell("code", released.source, name))
            repairs.append(f"The locked cell `{name}` was missing: it was put back.")
    return cells


def _that_can_be_shown(cells: list[_Cell], repairs: list[str]) -> list[_Cell]:
    """Replace what no grader can show: windows of matplotlib's, and pictures that are not in the file."""
    made = []
    for cell in cells:
        shown = _USES.sub(r"\1\2agg\2", _BACKEND.sub(r"\1 inline", cell.source)) if cell.kind == "code" else cell.source
        if shown != cell.source:
            cell = replace(cell, source=shown)
            repairs.append("Figures can't have windows while grading: `%matplotlib` was set to `inline`.")
        for picture in set(_PICTURE.findall(cell.source)) - set(cell.pictures) if cell.kind == "markdown" else ():
            cell = replace(cell, source=cell.source.replace(f"attachment:{picture}", "missing"))
            repairs.append("A picture of a text cell is not in the file.")
        made.append(cell)
    repairs[:] = dict.fromkeys(repairs)
    return made


def _made(number: int, cell: _Cell, given: _Lab) -> NotebookNode:
    made = _NEW_CELL[cell.kind](cell.source, id=f"cell-{number}")
    if cell.name:
        released = given.cells[cell.name].metadata
        made.metadata = NotebookNode({key: released[key] for key in ("nbgrader", "tags") if key in released})
    if cell.pictures:
        made["attachments"] = cell.pictures
    return made


def _signs(source: str) -> str:
    """Return a text without spaces, with one kind of quotes: what programs that format code leave alone."""
    return re.sub(r"\s+|,(?=\s*[)\]}])", "", source).replace("'", '"')


def _has_all_lines(source: str, of: str) -> bool:
    """Return True if all lines of another source are there, in order."""
    lines = iter(_stripped(source).splitlines())
    return all(line in lines for line in _stripped(of).splitlines())


def _stripped(source: str) -> str:
    return "\n".join(line.rstrip() for line in source.strip().splitlines())
