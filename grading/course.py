"""Execute the course's notebooks as CI does: papermill, every cell, the first error ends a notebook."""

from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from grading.classroom import ROOT
from grading.executor import QUIET_KERNEL

CELL_TIMEOUT_S = 600


def course_notebooks() -> list[Path]:
    """Every lesson, then every lab's solution, in reading order."""
    return sorted((ROOT / "course").glob("[0-9]*.ipynb")) + sorted((ROOT / "solutions").glob("*/*.ipynb"))


def run_notebooks(notebooks: list[Path], tier: str | None, console: Console) -> bool:
    """True if all of them ran to the end. What ran, with outputs up to an error, is in build/run."""
    folder = ROOT / "build" / "run"
    folder.mkdir(parents=True, exist_ok=True)
    table, n_failed = Table("notebook", "outcome", header_style="bold"), 0
    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(notebooks))
        for notebook in notebooks:
            progress.update(task, description=notebook.stem)
            problem = _run(notebook, folder / notebook.name, tier)
            n_failed += bool(problem)
            table.add_row(notebook.stem, f"[red]{problem}[/]" if problem else "[green]ran[/]")
            progress.advance(task)
    console.print(table)
    console.print(f"{len(notebooks) - n_failed} passed, {n_failed} failed", highlight=False)
    return not n_failed


def _run(notebook: Path, target: Path, tier: str | None) -> str:
    """Empty if it ran; else what went wrong, in a line."""
    if not notebook.is_file():
        return "there is no such notebook"
    try:
        papermill.execute_notebook(
            notebook,
            target,
            parameters={"tier": tier},
            kernel_name="python3",
            language="python",
            cwd=notebook.parent,
            progress_bar=False,
            execution_timeout=CELL_TIMEOUT_S,
            extra_arguments=QUIET_KERNEL,
        )
    except PapermillExecutionError as error:
        return f"cell {error.cell_index}: {error.ename}: {error.evalue}".splitlines()[0]
    except (OSError, ValueError) as error:
        return f"can't be run: {error}".splitlines()[0]
    return ""
