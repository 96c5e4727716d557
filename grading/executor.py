"""Inside `nbgrader autograde`: the notebook is run in a box, the referee judges, the graded cells get the verdicts.

It takes the place of nbgrader's own Execute preprocessor. The notebook's outputs decide nothing: whatever a graded cell
printed is replaced by the referee's verdict and its points, which nbgrader then reads as ever. So manual grading, late
penalties, regrading and feedback go on working.
"""

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade
from traitlets import Dict, Float, Integer, Unicode

from grading.checks import check_name
from grading.notebook import NotebookRunner
from grading.referee import FALSE_FAIL, Referee
from grading.sandbox import best_box
from grading.verdict import Verdict

VERDICT_MIME = "application/vnd.shardlab.verdict+json"  # how a verdict's figures travel in an autograded notebook
LACKS_CELLS = "the notebook lacks the cells of"
_referees: dict[
    tuple[str, str, float], Referee
] = {}  # one a lab: its reference crew serves every submission of the class
_runners: list[NotebookRunner] = []  # one at most, with a box that is ready for the next notebook


class RefereeExecutor(NbGraderPreprocessor):
    """Execute with papermill, judge with the referee."""

    tier = Unicode("cpu", help="papermill parameter `tier` of every notebook").tag(config=True)
    seed = Integer(0, help="papermill parameter `seed` of every notebook").tag(config=True)
    timeout = Integer(120, help="seconds that one cell may run").tag(config=True)
    notebook_timeout = Integer(900, help="seconds that all cells together may run").tag(config=True)
    retries = Integer(2, help="how often an inconclusive check is judged again").tag(config=True)
    false_fail = Float(FALSE_FAIL, help="chance that a fast enough step is called too slow").tag(config=True)
    parameters = Dict(help="further papermill parameters").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        each_time = self.false_fail / (1 + self.retries)
        judge = referee(resources["nbgrader"]["assignment"], self.tier, each_time)
        if missing := set(judge.checks) - {check_name(c.metadata.nbgrader.grade_id) for c in nb.cells if is_grade(c)}:
            raise RuntimeError(f"{LACKS_CELLS} {', '.join(sorted(missing))}")
        judge.prepare()
        run = runner().run(
            nb,
            resources["metadata"]["path"],
            parameters={"tier": self.tier, "seed": self.seed, **self.parameters},
            cell_timeout_s=self.timeout,
            timeout_s=self.notebook_timeout,
        )
        for cell, ran in zip(nb.cells, run.cells, strict=False):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
        for verdict in self._judge(judge, run.answers, _problems(nb, run.problem)):
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


def referee(lab: str, tier: str, false_fail: float) -> Referee:
    """The lab's referee, made once a process; `close_referees` ends them."""
    kind = lab, tier, false_fail
    if kind not in _referees:
        _referees[kind] = Referee(lab, tier, false_fail=false_fail)
    return _referees[kind]


def runner() -> NotebookRunner:
    if not _runners:
        _runners.append(NotebookRunner(best_box()))
    return _runners[0]


def close_referees() -> None:
    """And the box that stood ready for another notebook."""
    for idle in (*_referees.values(), *_runners):
        idle.close()
    _referees.clear()
    _runners.clear()


def _problems(nb: NotebookNode, problem: str) -> dict[str, str]:
    """Why a graded cell handed nothing in: the whole run's `problem`, its own error, or the first one above it."""
    problems, first = {}, None
    for cell in nb.cells:
        errors = [o for o in cell.get("outputs", []) if o.output_type == "error"]
        if errors and first is None:
            first = f"{errors[0].ename}: {errors[0].evalue}".strip(": ")
        if is_grade(cell):
            own = f"{errors[0].ename}: {errors[0].evalue}" if errors else "it did not call check(...)"
            did_not_run = cell.execution_count is None
            cause = f"the first error in the notebook was {first}" if first and (errors or did_not_run) else own
            problems[check_name(cell.metadata.nbgrader.grade_id)] = f"nothing was handed in: {problem or cause}"
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
