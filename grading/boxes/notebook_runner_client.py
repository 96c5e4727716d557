"""The referee's side of a notebook's run: send the notebook into a box, and receive outputs and pickled answers."""

import base64
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode, ValidationError

from grading.boxes.answers_folder_and_output_limits import MOST_OF_ALL, MOST_OUTPUT, MOST_OUTPUTS
from grading.boxes.sandbox import Box
from grading.boxes.sandbox.boxed_program import BoxedProgram, BoxedProgramError
from grading.boxes.sanitise_html_and_outputs import without_programs

_START_S = 120.0  # to start a box on a busy machine
_ENDINGS = 4  # outputs that the host may add to those of a cell
AGAIN = 0.5  # share of its time that must be left, for a killed notebook to be run again
_SPARE = 1 << 20  # characters of what the host may add to all cells
_MARGIN_S = 30.0  # for reading the outputs when time is up


@dataclass
class NotebookRun:
    """Result of a run. `cells`: each cell's outputs and execution_count. `problem`: why there are none, in words.

    `killed`: processes of the run ended, by their own doing or because the system was short of memory.
    """

    cells: list[dict] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""
    killed: bool = False


class NotebookRunner:
    """A runner of one notebook after the other, each in a new box; the next box starts while the last one is in use."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._spare = self._start()

    def _start(self) -> BoxedProgram:
        return BoxedProgram("grading.boxes.notebook_runner_in_box", box=self.box, imports=("grading.student.check",))

    def run(self, nb: NotebookNode, folder: str | None, **order) -> NotebookRun:
        """Run a notebook. `folder`: files to copy next to it. `order`: parameters, cell_timeout_s and timeout_s.

        A notebook that was killed is run once more, since the system rarely kills twice, in what is left of its time:
        if little is left, it is not. Raises RuntimeError if no box starts, which is not the notebook's fault.
        """
        began = time.monotonic()
        ran = self._run_once(nb, folder, order)
        left_s = int(order["timeout_s"] - (time.monotonic() - began))
        if not ran.killed or left_s < AGAIN * order["timeout_s"]:
            return ran
        return self._run_once(nb, folder, order | {"timeout_s": left_s})

    def _run_once(self, nb: NotebookNode, folder: str | None, order: dict) -> NotebookRun:
        program, self._spare = self._spare, self._start()
        try:
            _wait_until_ready(program)
            files = None if folder is None else str(shutil.copytree(folder, program.shared / "files", symlinks=True))
            program.send({"notebook": nb, "files": files, **order}, order["timeout_s"] + _MARGIN_S)
            return _read(program.receive(), len(nb.cells))
        except BoxedProgramError as error:
            return NotebookRun(problem=f"the notebook could not be run to its end: {error}", killed=error.killed)
        finally:
            program.close()

    def close(self) -> None:
        self._spare.close()


def _wait_until_ready(program: BoxedProgram) -> None:
    try:
        program.wait_until_ready(_START_S)
    except BoxedProgramError as error:
        raise RuntimeError(f"a box did not start, and nothing of the notebook was run: {error}") from None


def _read(reply: dict, n_cells: int) -> NotebookRun:
    """Read a reply that the submission may have written itself: accept only what has the right form."""
    run = NotebookRun(problem=str(reply.get("problem", ""))[:500])
    with suppress(AttributeError, TypeError, ValueError):
        run.answers = {str(name): base64.b64decode(text) for name, text in reply.get("answers").items()}
    try:
        if sum(len(cell["outputs"]) for cell in reply["cells"]) > MOST_OF_ALL + _ENDINGS * n_cells:
            raise ValueError("so many would take minutes to check, and the host keeps no more")
        if _characters(reply["cells"]) > MOST_OUTPUT + _SPARE:
            raise ValueError("the host keeps no more")
        cells = [_outputs(cell) for cell in reply["cells"]]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, ValidationError):
        cells = []
    if len(cells) == n_cells:
        run.cells = cells
        run.killed = any(o.get("ename") == "DeadKernelError" for cell in cells for o in cell["outputs"])
    else:
        run.problem = run.problem or "the notebook's outputs are not readable"
    return run


def _characters(value: object) -> int:
    if isinstance(value, dict):
        return sum(len(key) + _characters(each) for key, each in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else len(str(value))


def _outputs(cell: dict) -> dict:
    """Return a cell's outputs without programs. Raises ValidationError or other errors if they are malformed."""
    if len(cell["outputs"]) > MOST_OUTPUTS + _ENDINGS:
        raise ValueError("so many would take hours to check, and the host keeps no more")
    made = nbformat.v4.new_code_cell(outputs=cell["outputs"], execution_count=cell["execution_count"])
    nbformat.validate(nbformat.v4.new_notebook(cells=[nbformat.from_dict(made)]), relax_add_props=False)
    made.outputs = [without_programs(nbformat.from_dict(output)) for output in made.outputs]
    return made
