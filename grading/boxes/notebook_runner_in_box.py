"""The process that runs a submission's notebook, in a box with papermill and the kernel. It may be hostile.

Each message is a line of JSON. The process writes {"ready": true} when it is ready, and reads one order: {"notebook":
{...}, "parameters": {...}, "files": a folder or null, "cell_timeout_s": T, "timeout_s": T}. At the end, or when time is
up, it writes what there is: {"answers": {check name: base64}, "cells": [{"outputs": [...], "execution_count": n}],
"problem": why there are none}. It opens no answer and decides nothing.
"""

import base64
import json
import multiprocessing
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import nbformat
import papermill
from nbformat.v4 import new_output
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from grading.boxes.answers_folder_and_output_limits import (
    ANSWERS,
    LONGEST_OUTPUT,
    MOST_OF_ALL,
    MOST_OUTPUT,
    MOST_OUTPUTS,
)
from grading.boxes.pipes_and_subreaper import become_subreaper, private_pipes

LARGEST_ANSWER_BYTES = 32 << 20  # of all answers together, which must fit into the reply
_PRIVATE_SOCKETS = Config({"KernelManager": {"transport": "ipc"}})  # files in the box, not TCP ports
_QUIET_KERNEL = ["--log-level=CRITICAL"]  # the kernel's own log, not what the notebook prints
_ADDED_BY_PAPERMILL = {"injected-parameters", "papermill-error-cell-tag"}


def main() -> None:
    become_subreaper()
    orders, replies = private_pipes()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    reply = _run(json.loads(orders.readline()))
    print(json.dumps(reply), file=replies, flush=True)


def _run(order: dict) -> dict:
    home = Path(tempfile.gettempdir())
    work, answers, source, target = (home / name for name in ("work", "answers", "in.ipynb", "out.ipynb"))
    answers.mkdir()
    if order["files"]:
        shutil.copytree(order["files"], work, symlinks=True)
    work.mkdir(exist_ok=True)
    nbformat.write(all_cells_run(order["notebook"]), source)
    os.environ[ANSWERS] = str(answers)
    run = multiprocessing.get_context("fork").Process(target=_execute, args=(source, target, work, order))
    run.start()
    run.join(order["timeout_s"])
    end = _end(run.exitcode, order["timeout_s"])
    run.kill()
    try:
        cells, problem = _cells(target, order["cell_timeout_s"], end), ""
    except (AttributeError, LookupError, OSError, TypeError, ValueError):
        cells, problem = [], "papermill left no notebook that can be read"
    return {"answers": _answers(answers), "cells": cells, "problem": problem}


def all_cells_run(notebook: dict) -> nbformat.NotebookNode:
    """Tag every cell so that an error in it does not stop the cells after it."""
    nb = nbformat.from_dict(notebook)
    for cell in nb.cells:
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), "raises-exception"]
    return nb


def _execute(source: Path, target: Path, work: Path, order: dict) -> None:
    """Run all cells, whatever they raise. `target` holds the notebook after each cell."""
    with suppress(PapermillExecutionError):  # the cell's own output contains the error
        papermill.execute_notebook(
            source,
            target,
            parameters=order["parameters"],
            kernel_name="python3",
            language="python",
            cwd=work,
            progress_bar=False,
            execution_timeout=order["cell_timeout_s"],
            interrupt_on_timeout=True,
            error_on_timeout=_too_long(order["cell_timeout_s"]),
            config=_PRIVATE_SOCKETS,
            extra_arguments=_QUIET_KERNEL,
        )


def _too_long(timeout_s: int, what: str = "this cell") -> dict:
    return _error("CellTimeoutError", f"{what} ran longer than {timeout_s} s and was interrupted")


def _end(exit_code: int | None, timeout_s: int) -> dict | None:
    """Return the error for the last cell that ran if the notebook did not end by itself, else None."""
    if exit_code is None:
        return _too_long(timeout_s, "the notebook")
    return _error("DeadKernelError", "the kernel died in this cell") if exit_code else None


def _error(name: str, words: str) -> dict:
    return {"ename": name, "evalue": words, "traceback": [words]}


def _cells(target: Path, cell_timeout_s: int, end: dict | None) -> list[dict]:
    """Return the outputs of each cell that was handed in, without the cells that papermill added."""
    nb = nbformat.read(target, as_version=4)
    own = [cell for cell in nb.cells if not _ADDED_BY_PAPERMILL & set(cell.metadata.get("tags", []))]
    last = max((i for i, cell in enumerate(own) if cell.metadata.get("papermill", {}).get("start_time")), default=0)
    left, outputs_left, cells = MOST_OUTPUT, MOST_OF_ALL, []
    for i, cell in enumerate(own):
        outputs = [_shortened(output) for output in _first(cell.get("outputs", []))]
        left -= len(json.dumps(outputs))
        outputs_left -= len(outputs)
        if outputs and min(left, outputs_left) < 0:
            outputs = [new_output("stream", text="(not kept: there was too much output above)\n")]
        if (cell.metadata.get("papermill", {}).get("duration") or 0) > cell_timeout_s:
            outputs = [o for o in outputs if o.output_type != "error"]  # a KeyboardInterrupt, which explains nothing
            outputs.append(new_output("error", **_too_long(cell_timeout_s)))
        if end and i == last:
            outputs.append(new_output("error", **end))
        cells.append({"outputs": outputs, "execution_count": cell.get("execution_count")})
    return cells


def _first(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the first of many outputs, how many were left out, and the error that ended them."""
    rest = outputs[MOST_OUTPUTS:]
    error = [o for o in rest if o.output_type == "error"][-1:]
    left_out = [new_output("stream", text=f"({len(rest) - len(error)} more outputs)\n")] if rest else []
    return [*outputs[:MOST_OUTPUTS], *left_out, *error]


def _shortened(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Shorten the texts of an output: what was printed, what an error says, and what is shown as text."""
    for place, names in ((output, ("text", "ename", "evalue")), (output.get("data", {}), list(output.get("data", {})))):
        for name in names:
            if isinstance(place.get(name), str) and not name.startswith("image/"):
                place[name] = _cut(place[name])
    if output.output_type == "error" and sum(map(len, output.traceback)) > LONGEST_OUTPUT:
        output.traceback = [_cut("\n".join(output.traceback))]
    return output


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_OUTPUT else text[:LONGEST_OUTPUT] + "\n(shortened)\n"


def _answers(folder: Path) -> dict[str, str]:
    """Return the answers in base64. Only plain files are read: reading would follow a link, and wait for a pipe."""
    answers, left = {}, LARGEST_ANSWER_BYTES
    for entry in os.scandir(folder):
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode) and about.st_size <= left:
            answers[entry.name] = base64.b64encode(Path(entry.path).read_bytes()).decode()
            left -= about.st_size
    return answers


if __name__ == "__main__":
    main()
