"""Execute the course's notebooks as CI does: papermill runs every cell; a table and a JSON file show the outcomes."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shardbench import environment
from shardcourse.lessons.changed import digest
from shardcourse.lessons.executed import output_problems, unbacked_numbers
from shardcourse.lessons.folders import build, shown
from shardcourse.lessons.outcome import Outcome, write_junit
from shardcourse.repository import ROOT
from shardlab.tier import detect

CELL_TIMEOUT_S = 600
QUIET_KERNEL = ["--log-level=CRITICAL"]  # the kernel's own log, not what the notebook prints


def course_notebooks() -> list[Path]:
    """Return every lesson and the appendix, then every lab's solution, in reading order."""
    return sorted((ROOT / "course").glob("*.ipynb")) + sorted((ROOT / "solutions").glob("*/*.ipynb"))


def run_notebooks(
    notebooks: list[Path],
    tier: str | None,
    console: Console,
    json_file: Path | None = None,
    parameters: dict | None = None,
    junit: Path | None = None,
) -> bool:
    """Run the notebooks; return True if none has a problem. build/run has the executed notebooks, up to an error."""
    folder = build("run")
    folder.mkdir(parents=True, exist_ok=True)
    record = {"environment": environment(), "tier": detect(tier).name}
    outcomes = list(_run_all(notebooks, folder, {"tier": tier} | (parameters or {}), console))
    console.print(outcome_table(outcomes))
    n_failed = sum(bool(o.problems) for o in outcomes)
    seconds = sum(o.seconds for o in outcomes)
    words = f"{len(outcomes) - n_failed} passed, {n_failed} failed, {seconds:.0f} s; what ran is in {shown(folder)}"
    console.print(words, highlight=False)
    record |= {"seconds": round(seconds), "notebooks": [asdict(o) for o in outcomes]}
    (json_file or folder / "course.json").write_text(json.dumps(record, indent=1) + "\n")
    if junit:
        write_junit(junit, outcomes, record["tier"])
    return not n_failed


def outcome_table(outcomes: list[Outcome]) -> Table:
    table = Table("notebook", "cells", "seconds", "slowest cell", "outcome", header_style="bold")
    for o in outcomes:
        words = Text("\n".join(o.problems), "red") if o.problems else Text("ran", "green")
        table.add_row(o.notebook, str(o.cells), f"{o.seconds:.0f}", f"{o.slowest_cell_s:.0f}", words)
    return table


def _run_all(notebooks: list[Path], folder: Path, parameters: dict, console: Console) -> Iterator[Outcome]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(notebooks))
        for notebook in notebooks:
            progress.update(task, description=notebook.stem)
            yield run_notebook(notebook, folder / notebook.name, parameters)
            progress.advance(task)


def run_notebook(notebook: Path, target: Path, parameters: dict) -> Outcome:
    """Execute the notebook, write it to `target`, and return the outcome."""
    began = time.monotonic()
    error = _execute(notebook, target, parameters)
    seconds = time.monotonic() - began
    if not target.is_file():
        return Outcome(notebook.stem, round(seconds, 1), 0, 0.0, [error])
    executed = nbformat.read(target, as_version=4)
    problems = [error] if error else output_problems(executed)
    is_lesson = notebook.resolve().parent.name == "course"
    if not error and is_lesson and detect(parameters.get("tier")).device == "cpu":  # the prose has a CPU's numbers
        problems += [f"the prose says what no cell does: {words}" for words in unbacked_numbers(executed)]
    durations = [cell.metadata.get("papermill", {}).get("duration") or 0.0 for cell in executed.cells]
    n_run = sum(bool(cell.get("execution_count")) for cell in executed.cells)
    return Outcome(
        notebook.stem, round(seconds, 1), n_run, round(max(durations, default=0.0), 1), problems, digest(notebook)
    )


def _execute(notebook: Path, target: Path, parameters: dict) -> str:
    """Execute the notebook. Return an empty string if it ran, else the error in one line."""
    target.unlink(missing_ok=True)
    if not notebook.is_file():
        return "there is no such notebook"
    try:
        papermill.execute_notebook(
            notebook,
            target,
            parameters=parameters,
            kernel_name="python3",
            language="python",
            cwd=notebook.parent,
            progress_bar=False,
            execution_timeout=CELL_TIMEOUT_S,
            extra_arguments=QUIET_KERNEL,
        )
    except PapermillExecutionError as error:
        return f"cell {error.cell_index}: {error.ename}: {error.evalue}".splitlines()[0]
    except (OSError, ValueError, DeadKernelError) as error:  # the last: a killed kernel, for example
        return f"can't be run: {error}".splitlines()[0]
    return ""
