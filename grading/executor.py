"""Inside `nbgrader autograde`: papermill runs the notebook, the referee judges, the graded cells get the verdicts.

It takes the place of nbgrader's own Execute preprocessor. The notebook's outputs decide nothing: whatever a graded cell
printed is replaced by the referee's verdict and its points, which nbgrader then reads as ever. So manual grading, late
penalties, regrading and feedback go on working.
"""

import os
import stat
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade
from papermill.exceptions import PapermillExecutionError
from traitlets import Dict, Integer, Unicode
from traitlets.config import Config

from grading.check import ANSWERS
from grading.checks import check_name
from grading.referee import Referee
from grading.verdict import Verdict
from shardlab.environ import environ
from shardlab.lessons.run import QUIET_KERNEL

LARGEST_ANSWER_BYTES = 64 << 20
VERDICT_MIME = "application/vnd.shardlab.verdict+json"  # how a verdict's figures travel in an autograded notebook
_PRIVATE_SOCKETS = Config({"KernelManager": {"transport": "ipc"}})  # not TCP ports, which other users could reach
_ADDED_BY_PAPERMILL = {"injected-parameters", "papermill-error-cell-tag"}
_referees: dict[tuple[str, str], Referee] = {}  # one a lab: its reference crew serves every submission of the class


class RefereeExecutor(NbGraderPreprocessor):
    """Execute with papermill, judge with the referee."""

    tier = Unicode("cpu", help="papermill parameter `tier` of every notebook").tag(config=True)
    seed = Integer(0, help="papermill parameter `seed` of every notebook").tag(config=True)
    timeout = Integer(120, help="seconds that one cell may run").tag(config=True)
    retries = Integer(2, help="how often an inconclusive check is judged again").tag(config=True)
    parameters = Dict(help="further papermill parameters").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        lab = resources["nbgrader"]["assignment"]
        folder = resources["metadata"]["path"]
        judge = referee(lab, self.tier)
        judge.prepare()
        with tempfile.TemporaryDirectory(prefix="shardlab-answers-") as answers_folder:
            executed = self._run(nb, folder, answers_folder)
            answers = _read_answers(answers_folder, judge.checks)
        _copy_outputs(executed, nb)
        for verdict in self._judge(judge, answers, _problems(nb)):
            self.log.info(verdict.text())
            _write(verdict, nb)
        return nb, resources

    def _judge(self, referee: Referee, answers: dict[str, bytes], problems: dict[str, str]) -> list[Verdict]:
        """Ask again where noise hid the answer; RuntimeError if it still does: better no grade than an unfair one."""
        verdicts = {v.check: v for v in referee.judge(answers, problems)}
        for _ in range(self.retries):
            for name in [v.check for v in verdicts.values() if v.inconclusive]:
                verdicts |= {v.check: v for v in referee.judge(answers, problems, only=name)}
        open_questions = [v.text() for v in verdicts.values() if v.inconclusive]
        if open_questions:
            raise RuntimeError("not graded; grade again on a quieter machine:\n" + "\n".join(open_questions))
        return list(verdicts.values())

    def _run(self, nb: NotebookNode, folder: str, answers_folder: str) -> NotebookNode:
        """The notebook as papermill ran it: to the end, whatever cells raise."""
        copy = nbformat.from_dict(nb)
        for cell in copy.cells:
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "raises-exception"]
        with ExitStack() as stack:
            work = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardlab-run-", ignore_cleanup_errors=True))
            temporary = os.path.join(work, "temporary")  # the kernel's, so that nothing of it stays
            os.mkdir(temporary)
            stack.enter_context(environ({ANSWERS: answers_folder, "TMPDIR": temporary}))
            source, target = os.path.join(work, "in.ipynb"), os.path.join(work, "out.ipynb")
            nbformat.write(copy, source)
            with suppress(PapermillExecutionError):  # the cell's own output says it
                papermill.execute_notebook(
                    source,
                    target,
                    parameters={"tier": self.tier, "seed": self.seed, **self.parameters},
                    kernel_name="python3",
                    cwd=folder,
                    progress_bar=False,
                    execution_timeout=self.timeout,
                    interrupt_on_timeout=True,
                    error_on_timeout=_too_long(self.timeout),
                    config=_PRIVATE_SOCKETS,
                    extra_arguments=QUIET_KERNEL,
                )
            return nbformat.read(target, as_version=4)


def _too_long(timeout_s: int) -> dict:
    words = f"this cell ran longer than {timeout_s} s and was interrupted"
    return {"ename": "CellTimeoutError", "evalue": words, "traceback": [words]}


def referee(lab: str, tier: str) -> Referee:
    """The lab's referee, made once a process; `close_referees` ends them."""
    if (lab, tier) not in _referees:
        _referees[lab, tier] = Referee(lab, tier)
    return _referees[lab, tier]


def close_referees() -> None:
    while _referees:
        _referees.popitem()[1].close()


def _read_answers(folder: str, checks: list[str]) -> dict[str, bytes]:
    """The pickled answers, none of them opened; of the submission's folder only plain files of these names count."""
    answers = {}
    for entry in os.scandir(folder):
        about = entry.stat(follow_symlinks=False)
        if entry.name in checks and stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST_ANSWER_BYTES:
            answers[entry.name] = Path(entry.path).read_bytes()
    return answers


def _copy_outputs(executed: NotebookNode, nb: NotebookNode) -> None:
    """Take over outputs cell by cell; what papermill added for itself stays behind."""
    own = [c for c in executed.cells if not _ADDED_BY_PAPERMILL & set(c.metadata.get("tags", []))]
    for cell, ran in zip(nb.cells, own, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count


def _problems(nb: NotebookNode) -> dict[str, str]:
    """Why a graded cell handed nothing in: its own error, or else the first one above it."""
    problems, first = {}, None
    for cell in nb.cells:
        errors = [o for o in cell.get("outputs", []) if o.output_type == "error"]
        if errors and first is None:
            first = f"{errors[0].ename}: {errors[0].evalue}".strip(": ")
        if is_grade(cell):
            own = f"{errors[0].ename}: {errors[0].evalue}" if errors else "it did not call check(...)"
            cause = f"the first error in the notebook was {first}" if first and errors else own
            problems[check_name(cell.metadata.nbgrader.grade_id)] = f"nothing was handed in: {cause}"
    return problems


def _write(verdict: Verdict, nb: NotebookNode) -> None:
    """Replace the graded cell's outputs. A number as the cell's result is nbgrader's way of giving partial credit."""
    for cell in nb.cells:
        if is_grade(cell) and check_name(cell.metadata.nbgrader.grade_id) == verdict.check:
            forms = {"text/html": verdict.html(), "text/plain": verdict.text(), VERDICT_MIME: verdict.as_json()}
            shown = new_output("display_data", forms)
            points = new_output("execute_result", {"text/plain": f"{verdict.points:g}"}, execution_count=1)
            cell.outputs = [shown, points]


def read_verdicts(nb: NotebookNode) -> list[Verdict]:
    """The verdicts in an autograded notebook."""
    outputs = [output for cell in nb.cells if is_grade(cell) for output in cell.get("outputs", [])]
    records = [output.get("data", {}).get(VERDICT_MIME) for output in outputs]
    return [Verdict.from_json(r) for r in records if r]
