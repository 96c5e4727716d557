"""Submissions to try the grader on: right ones in different styles, and every wrong one that a class will hand in.

A sample is a Python file of cells, each headed `# %% <grade_id>`, that take the place of the solution's cells of that
name; what it leaves out stays as in the solution. `class.toml` says what each one must be given, and why.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """`points` by check, for the checks that must not be full; `cause` must be found in the first of those verdicts."""

    name: str
    about: str
    points: dict[str, float]
    cause: str
    demo: bool
    cells: dict[str, str]

    def notebook(self, solution: Path) -> nbformat.NotebookNode:
        """The solution's notebook with this sample's cells in it."""
        nb = nbformat.read(solution, as_version=4)
        for cell in nb.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            cell.source = self.cells.get(grade_id, cell.source)
        return nb


def samples(lab: str) -> list[Sample]:
    """The lab's samples, in the order of its class.toml."""
    entries = tomllib.loads((_FOLDER / lab / "class.toml").read_text(encoding="utf-8"))
    return [
        Sample(name, e["about"], e.get("points", {}), e.get("cause", ""), e.get("demo", False), _cells(lab, name))
        for name, e in entries.items()
    ]


def _cells(lab: str, name: str) -> dict[str, str]:
    file = _FOLDER / lab / f"{name}.py"
    if not file.exists():  # the solution itself
        return {}
    _, *parts = re.split(r"^# %% (\S+)\n", file.read_text(encoding="utf-8"), flags=re.M)
    return {grade_id: source.strip() for grade_id, source in zip(parts[::2], parts[1::2], strict=True)}
