"""Replace nbgrader's execution: hand its notebook to the judge, and write what was judged into the graded cells.

This preprocessor replaces nbgrader's own Execute. The notebook's outputs decide nothing: each verdict and its points
replace the outputs of a graded cell, and nbgrader reads the points as usual. So manual grading, late penalties,
regrading and feedback still work.
"""

from dataclasses import fields, replace
from pathlib import Path

from ipykernel.compiler import get_file_name
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool, Dict, Float, Integer, Unicode

from grading.gradebook.result_cache import Shelf, made_of
from grading.judge.find_lab import check_name
from grading.judge.judge_submission import JUDGE, Judged, Settings, Submission
from grading.judge.verdict import Verdict
from shardlab.launch.notebook_tracebacks import name_cells

VERDICT_MIME = "application/vnd.shardlab.verdict+json"  # holds a verdict's record in an autograded notebook


class RefereeExecutor(NbGraderPreprocessor):
    """Judge the notebook, or reuse the earlier result if nothing has changed since."""

    shelf = Unicode("grading/judged", help="folder of what was judged").tag(config=True)
    again = Bool(False, help="judge anew what has not changed").tag(config=True)
    only_judged = Bool(False, help="take what was judged, and run nothing").tag(config=True)
    at_a_time = Integer(1, help="how many submissions are judged at a time on this machine").tag(config=True)
    tier = Unicode("cpu", help="papermill parameter `tier` of every notebook").tag(config=True)
    seed = Integer(0, help="papermill parameter `seed` of every notebook").tag(config=True)
    timeout = Integer(120, help="seconds that one cell may run").tag(config=True)
    notebook_timeout = Integer(900, help="seconds that all cells together may run").tag(config=True)
    retries = Integer(2, help="how often an inconclusive check is judged again").tag(config=True)
    false_fail = Float(Settings.false_fail, help="chance that a fast enough step is called too slow").tag(config=True)
    parameters = Dict(help="further papermill parameters").tag(config=True)

    @property
    def settings(self) -> Settings:
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        submission = Submission(about["assignment"], nb, graded_cells(nb), Path(resources["metadata"]["path"]))
        judged = self._judged(submission, about["student"])
        if judged.unclear:  # better no grade than an unfair one
            raise RuntimeError(judged.why_not_graded)
        for verdict in judged.verdicts:
            self.log.info(verdict.text())
        _write(judged, nb, submission.checks)
        return nb, resources

    def _judged(self, submission: Submission, student: str) -> Judged:
        """Return the stored result, or a new one.

        A stored result is taken only if its digests are those of the notebook and files that nbgrader has here.
        nbgrader reads them from the submitted folder itself, and the student or `nbgrader collect` may have replaced
        them since the judged ones were put into the queue.
        """
        shelf, now = Shelf(self.shelf), made_of(submission, self.settings)
        found = shelf.get(submission.lab, student)
        if found and found.made_of == now and (self.only_judged or not (self.again or found.judged.unclear)):
            return found.judged
        if self.only_judged:
            raise RuntimeError(f"{student}'s {submission.lab} is not what was judged: grade again")
        judged = JUDGE.judge(submission, self.settings)
        kept = shelf.keep(submission.lab, student, now, judged)
        if kept is not judged:
            self.log.warning(f"{student}'s {submission.lab} keeps its points; this time: {judged.why_not_graded}")
        return kept


def graded_cells(nb: NotebookNode) -> dict[int, str]:
    """Return the check of each cell that the referee grades, by the cell's index. A person grades written arguments."""
    graded = [i for i, cell in enumerate(nb.cells) if is_grade(cell) and not is_solution(cell)]
    return {i: check_name(nb.cells[i].metadata.nbgrader.grade_id) for i in graded}


def _write(judged: Judged, nb: NotebookNode, checks: dict[int, str]) -> None:
    """Put outputs into the cells, and into a graded cell its verdict. nbgrader takes a number as partial credit."""
    for cell, ran in zip(nb.cells, judged.cells, strict=False):  # there are no outputs if the run left nothing
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = from_dict(ran["outputs"]), ran["execution_count"]
    names = {Path(get_file_name(c.source)).name: _name(i, c) for i, c in enumerate(nb.cells) if c.cell_type == "code"}
    verdicts = {
        v.check: replace(v, cause=name_cells(v.cause, names), detail=name_cells(v.detail, names))
        for v in judged.verdicts
    }
    for i, check in checks.items():
        if verdict := verdicts.get(check):
            record = verdict.as_json() | {"picture": ""}  # the HTML has it
            forms = {"text/html": verdict.html(), "text/plain": verdict.text(), VERDICT_MIME: record}
            shown = new_output("display_data", forms)
            points = new_output("execute_result", {"text/plain": f"{verdict.points:g}"}, execution_count=1)
            nb.cells[i].outputs = [shown, points]


def _name(index: int, cell: NotebookNode) -> str:
    """Return a cell's name for a student: the lab's name for it, or its place in the notebook."""
    return f"cell {cell.metadata.get('nbgrader', {}).get('grade_id') or index + 1}"


def read_verdicts(nb: NotebookNode) -> list[Verdict]:
    """Return the verdicts in an autograded notebook."""
    outputs = [output for cell in nb.cells if is_grade(cell) for output in cell.get("outputs", [])]
    records = [output.get("data", {}).get(VERDICT_MIME) for output in outputs]
    return [Verdict.from_json(r) for r in records if r]
