"""Submissions to try the grader on: right ones in different styles, and every wrong one that a class will hand in.

`class.toml` says who hands in what, and what it must be given, and why. A submission is the solution with a few slips
(`edits`), with cells as they were released (`blank`), or with cells of its own from a Python file of its name, each
headed `# %% <grade_id>`; `cells_of` takes those of another submission.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parent.parent


@dataclass(frozen=True)
class Sample:
    """`points` by check, for the checks that must not be full; `cause` must be found in the first of those verdicts."""

    lab: str
    name: str
    about: str
    cells: dict[str, str]
    points: dict[str, float] = field(default_factory=dict)
    cause: str = ""
    demo: bool = False
    blank: list[str] = field(default_factory=list)
    edits: list[tuple[str, str]] = field(default_factory=list)

    def notebook(self) -> nbformat.NotebookNode:
        """The solution's notebook with this sample's cells and edits. ValueError if one fits nowhere, or twice."""
        nb = read_lab("solutions", self.lab)
        released = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("labs", self.lab).cells}
        own = self.cells | {grade_id: released[grade_id] for grade_id in self.blank}
        for cell in nb.cells:
            cell.source = own.pop(cell.metadata.nbgrader.grade_id, cell.source)
        if own:
            raise ValueError(f"sample {self.name}: no cell is called {', '.join(own)}")
        for old, new in self.edits:
            places = [cell for cell in nb.cells if old in cell.source]
            if len(places) != 1 or places[0].source.count(old) != 1:
                raise ValueError(f"sample {self.name}: an edit must fit in one place: {old!r}")
            places[0].source = places[0].source.replace(old, new)
        return nb


def read_lab(folder: str, lab: str) -> nbformat.NotebookNode:
    """Its notebook in `solutions` or `labs`."""
    return nbformat.read(_ROOT / folder / lab / f"{lab}.ipynb", as_version=4)


def samples(lab: str) -> list[Sample]:
    """The lab's samples, in the order of its class.toml."""
    entries = tomllib.loads((_FOLDER / lab / "class.toml").read_text(encoding="utf-8"))
    return [Sample(lab, name, cells=_cells(lab, e.pop("cells_of", name)), **e) for name, e in entries.items()]


def _cells(lab: str, name: str) -> dict[str, str]:
    file = _FOLDER / lab / f"{name}.py"
    if not file.exists():  # the solution, but for edits
        return {}
    _, *parts = re.split(r"^# %% (\S+)\n", file.read_text(encoding="utf-8"), flags=re.M)
    return {grade_id: source.strip() for grade_id, source in zip(parts[::2], parts[1::2], strict=True)}
