"""Written arguments: text cells that a person grades by hand, in nbgrader's formgrader.

nbgrader gives 0 to a cell that is left as it was released, and waits for a person with any other. Its sums count a cell
that waits as 0. Here such a cell has no points until a person has entered them.
"""

from dataclasses import dataclass
from pathlib import Path

import nbgrader.api
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.api import Gradebook, GradeCell, MissingEntry
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade

MOST_WORDS = 150
STUB = "*Your argument here, up to 150 words.*"  # what nbgrader releases in place of the model answer
NO_CELL = "*The notebook that was handed in has no cell for the argument.*"
RUBRIC = "rubric"  # the file of a lab's rubric, and the tag of the cell that shows it to the instructor
_FLAGS = {"grade": True, "solution": True, "locked": False, "task": False}


@dataclass(frozen=True)
class Written:
    """One written argument. `points`: None until a person has graded it; `by_hand`: a person has."""

    cell: str
    points: float | None
    max_points: float
    by_hand: bool
    words: int

    @property
    def in_short(self) -> str:
        if self.points is None:
            return f"to grade ({self.max_points:g})"
        return f"{self.points:g}/{self.max_points:g}" + ("" if self.by_hand else " (empty)")

    @property
    def text(self) -> str:
        """Return the state in words. Table, report, export and page follow the same `points`."""
        most = f"{self.max_points:g} points"
        if self.points is None:
            said = f"to be graded by hand ({most})"
        else:
            said = f"{self.points:g} of {most}, " + ("graded by hand" if self.by_hand else "left as it was released")
        return said + (f"; {self.words} words, of up to {MOST_WORDS}" if self.words > MOST_WORDS else "")


def is_written(cell: NotebookNode | GradeCell | nbgrader.api.Grade) -> bool:
    """Return True for a text cell with points: of a notebook, of a released lab, or of a submission's grades."""
    return cell.cell_type == "markdown" and (not isinstance(cell, NotebookNode) or is_grade(cell))


def written(grade: nbgrader.api.Grade, nb: NotebookNode | None) -> Written:
    """Return the argument behind one of the gradebook's grades. `nb`: the notebook as it was graded, for its words."""
    by_hand = grade.manual_score is not None
    points = float(grade.score) if by_hand or grade.auto_score is not None else None
    cells = [c for c in (nb.cells if nb else []) if c.metadata.get("nbgrader", {}).get("grade_id") == grade.name]
    return Written(grade.name, points, float(grade.max_score), by_hand, sum(count_words(c.source) for c in cells))


def count_words(text: str) -> int:
    """Return how many words a student has written: what has a letter or a digit, and is not the released text."""
    return sum(any(map(str.isalnum, word)) for word in text.replace(STUB, " ").split())


def less_penalty(checks: float, by_hand: float, penalty: float) -> tuple[float, float]:
    """Return points of checks and of written arguments less a late penalty, which takes those of checks first."""
    return max(0.0, checks - penalty), max(0.0, by_hand - max(0.0, penalty - checks))


class WrittenCells(NbGraderPreprocessor):
    """Restore what was released as a written argument: its flags, its text if it was emptied, a cell if it is missing.

    An empty cell then gets 0, as one that is left as it was released. A missing one waits for the instructor.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        with Gradebook(about["db_url"]) as gradebook:
            try:
                released = gradebook.find_notebook(about["notebook"], about["assignment"])
            except MissingEntry:  # nbgrader says so itself
                return nb, resources
            texts = {cell.name: cell for cell in released.source_cells}
            for cell in filter(is_written, released.grade_cells):
                self._restore(nb, cell, texts[cell.name])
        return nb, resources

    def _restore(self, nb: NotebookNode, released: GradeCell, text) -> None:
        found = [c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") == released.name]
        if not found:
            about = {"grade_id": released.name, "schema_version": 3, "cell_type": "markdown"}
            found = [new_markdown_cell(NO_CELL, metadata={"nbgrader": about})]
            nb.cells += found
        for cell in found:
            cell.source = cell.source if cell.source.strip() else text.source
            cell.metadata.nbgrader |= _FLAGS | {"points": released.max_score, "checksum": text.checksum}


class ShowRubric(NbGraderPreprocessor):
    """Show the lab's rubric above the argument, and its number of words: formgrader shows the notebook as graded."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        course = CourseDirectory(config=self.config)
        lab = resources["nbgrader"]["assignment"]
        file = Path(course.format_path(course.source_directory, ".", lab)) / f"{RUBRIC}.md"
        if file.is_file():
            cells = []
            for cell in nb.cells:
                if is_written(cell):
                    words = f"{count_words(cell.source)} words, of up to {MOST_WORDS}."
                    text = f"{file.read_text(encoding='utf-8')}\n{words}"
                    cells.append(new_markdown_cell(text, metadata={"tags": [RUBRIC]}))
                cells.append(cell)
            nb.cells = cells
        return nb, resources
