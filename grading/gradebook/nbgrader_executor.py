"""Replace nbgrader's execution: run the notebook in a box, judge it, and write verdicts into the graded cells.

This preprocessor replaces nbgrader's own Execute. The notebook's outputs decide nothing: the referee's verdict and its
points replace the outputs of each graded cell, and nbgrader reads the points as usual. So manual grading, late
penalties, regrading and feedback still work.
"""

import time
from itertools import zip_longest
from pathlib import Path

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade
from traitlets import Bool, Dict, Float, Integer, Unicode

from grading.boxes.machine_locks import Gpus, gpus_for
from grading.boxes.notebook import NotebookRun, NotebookRunner
from grading.boxes.sandbox import Box, Limits, best_box
from grading.gradebook.result_cache import Judged, Shelf, made_of
from grading.judge.find_lab import check_name, lab_module
from grading.judge.referee import FALSE_FAIL, Referee
from grading.judge.verdict import Verdict
from shardlab.tier import detect

VERDICT_MIME = "application/vnd.shardlab.verdict+json"  # holds a verdict's record in an autograded notebook
LACKS_CELLS = "the notebook lacks the cells of"
_referees: dict[tuple, Referee] = {}  # one a lab: its reference crew serves every submission of the class
_gpus: list[Gpus] = []  # locked once, for all submissions that are judged here one after the other
_runners: list[NotebookRunner] = []  # at most one, with a box that is ready for the next notebook


class RefereeExecutor(NbGraderPreprocessor):
    """Run with papermill and judge with the referee, or reuse the earlier result if nothing has changed since."""

    shelf = Unicode("grading/judged", help="folder of what was judged").tag(config=True)
    again = Bool(False, help="judge anew what has not changed").tag(config=True)
    only_judged = Bool(False, help="take what was judged, and run nothing").tag(config=True)
    at_a_time = Integer(1, help="how many submissions are judged at a time on this machine").tag(config=True)
    tier = Unicode("cpu", help="papermill parameter `tier` of every notebook").tag(config=True)
    seed = Integer(0, help="papermill parameter `seed` of every notebook").tag(config=True)
    timeout = Integer(120, help="seconds that one cell may run").tag(config=True)
    notebook_timeout = Integer(900, help="seconds that all cells together may run").tag(config=True)
    retries = Integer(2, help="how often an inconclusive check is judged again").tag(config=True)
    false_fail = Float(FALSE_FAIL, help="chance that a fast enough step is called too slow").tag(config=True)
    parameters = Dict(help="further papermill parameters").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        judged = self.judged(nb, Path(resources["metadata"]["path"]), about["assignment"], about["student"])
        if judged.unclear:  # better no grade than an unfair one
            raise RuntimeError(not_graded(judged))
        _put_outputs(judged.cells, nb)
        for verdict in judged.verdicts:
            self.log.info(verdict.text())
            _write(verdict, nb)
        return nb, resources

    def judged(self, nb: NotebookNode, folder: Path, lab: str, student: str) -> Judged:
        """Return the result, new or stored. `folder`: files next to the notebook. `nb`: to be run, and not changed."""
        shelf, now = Shelf(self.shelf), self.made_of(nb, folder, lab)
        found = shelf.get(lab, student)
        if found and found.made_of == now and (self.only_judged or not (self.again or found.unclear)):
            return found
        if self.only_judged:
            raise RuntimeError(f"{student}'s {lab} has not been judged as it is now")
        graded = {check_name(cell.metadata.nbgrader.grade_id) for cell in nb.cells if is_grade(cell)}
        if missing := set(lab_module(lab).CHECKS) - graded:
            raise RuntimeError(f"{LACKS_CELLS} {', '.join(sorted(missing))}")
        judged = self._judge(nb, folder, lab, now)
        if judged.unclear and found and found.made_of == now and not found.unclear:
            self.log.warning(f"{student}'s {lab} keeps its points; this time: {not_graded(judged)}")
            return found
        shelf.put(lab, student, judged)
        return judged

    def made_of(self, nb: NotebookNode, folder: Path, lab: str) -> dict[str, str]:
        names = ("tier", "seed", "timeout", "notebook_timeout", "false_fail", "parameters")
        return made_of(nb, folder, lab, {name: getattr(self, name) for name in names})

    def _judge(self, nb: NotebookNode, folder: Path, lab: str, now: dict[str, str]) -> Judged:
        began = time.monotonic()
        judge = referee(lab, self.tier, self.false_fail / (1 + self.retries), self.at_a_time)
        judge.prepare()
        if not judge.box.own_world:
            self.log.warning(f"the submission runs in {judge.box.name}")
        run = runner(self.at_a_time).run(
            nb,
            str(folder),
            parameters={"tier": self.tier, "seed": self.seed, **self.parameters},
            cell_timeout_s=self.timeout,
            timeout_s=self.notebook_timeout,
        )
        problems = _problems(nb, run)
        verdicts, n_again = {v.check: v for v in judge.judge(run.answers, problems)}, 0
        for _ in range(self.retries):  # judge again what noise hid
            for name in [v.check for v in verdicts.values() if v.inconclusive]:
                verdicts |= {v.check: v for v in judge.judge(run.answers, problems, only=name)}
                n_again += 1
        seconds = round(time.monotonic() - began, 2)
        cells = [{"outputs": cell.outputs, "execution_count": cell.execution_count} for cell in run.cells]
        return Judged(now, cells, list(verdicts.values()), run.problem, seconds, n_again)


def not_graded(judged: Judged) -> str:
    """Message for a result that is unclear."""
    return "\n".join(["not graded; grade again on a quieter machine:", *(v.text() for v in judged.unclear)])


def referee(lab: str, tier: str, false_fail: float, at_a_time: int) -> Referee:
    """Return the lab's referee, made once a process; `close_referees` ends all referees."""
    kind = lab, tier, false_fail, at_a_time
    if kind not in _referees:
        if not _gpus and (gpus := gpus_for(detect(tier))):
            _gpus.append(gpus)
        _referees[kind] = Referee(lab, tier, box=_box(at_a_time), false_fail=false_fail)
    return _referees[kind]


def runner(at_a_time: int) -> NotebookRunner:
    if not _runners:
        _runners.append(NotebookRunner(_box(at_a_time)))
    return _runners[0]


def _box(at_a_time: int) -> Box:
    return best_box(Limits.of_this_machine(at_a_time))


def close_referees() -> None:
    """Close all referees, the box that is ready for the next notebook, and the GPU locks."""
    for idle in (*_referees.values(), *_runners, *_gpus):
        idle.close()
    _gpus.clear()
    _referees.clear()
    _runners.clear()


def _put_outputs(cells: list[dict], nb: NotebookNode) -> None:
    for cell, ran in zip(nb.cells, cells, strict=False):  # there are no outputs if the run left nothing
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = from_dict(ran["outputs"]), ran["execution_count"]


def _problems(nb: NotebookNode, run: NotebookRun) -> dict[str, str]:
    """Return why each graded cell handed nothing in: the run's problem, the first error, or no call of `check`."""
    problems, first = {}, None
    for cell, ran in zip_longest(nb.cells, run.cells, fillvalue={"outputs": [], "execution_count": None}):
        errors = [o for o in ran["outputs"] if o.output_type == "error"]
        if errors and first is None:
            first = f"{errors[0].ename}: {errors[0].evalue}".strip(": ")
        if is_grade(cell):
            own = f"{errors[0].ename}: {errors[0].evalue}" if errors else "it did not call check(...)"
            did_not_run = ran["execution_count"] is None
            cause = f"the first error in the notebook was {first}" if first and (errors or did_not_run) else own
            problems[check_name(cell.metadata.nbgrader.grade_id)] = f"nothing was handed in: {run.problem or cause}"
    return problems


def _write(verdict: Verdict, nb: NotebookNode) -> None:
    """Replace the graded cell's outputs. nbgrader takes a number as the cell's result for its partial credit."""
    for cell in nb.cells:
        if is_grade(cell) and check_name(cell.metadata.nbgrader.grade_id) == verdict.check:
            record = verdict.as_json() | {"picture": ""}  # the HTML has it
            forms = {"text/html": verdict.html(), "text/plain": verdict.text(), VERDICT_MIME: record}
            shown = new_output("display_data", forms)
            points = new_output("execute_result", {"text/plain": f"{verdict.points:g}"}, execution_count=1)
            cell.outputs = [shown, points]


def read_verdicts(nb: NotebookNode) -> list[Verdict]:
    """The verdicts in an autograded notebook."""
    outputs = [output for cell in nb.cells if is_grade(cell) for output in cell.get("outputs", [])]
    records = [output.get("data", {}).get(VERDICT_MIME) for output in outputs]
    return [Verdict.from_json(r) for r in records if r]
