"""`shardlab lab`: JupyterLab on the first lesson, with nbgrader's buttons set up for this course."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

FIRST_LESSON = "course/00_start_here.ipynb"
FOR_JUPYTERLAB = {"allow_extra_args": True, "ignore_unknown_options": True}


def lab_command(
    context: typer.Context,
    course: Annotated[Path | None, typer.Option(help="the course's folder; this one if left out")] = None,
) -> None:
    """Open JupyterLab on the first lesson. Other options are JupyterLab's, such as --no-browser or --port=8889.

    Validate and formgrader look for the course's settings where JUPYTER_CONFIG_PATH says: without it they would give a
    check 30 seconds, and know of no gradebook.

    Where the course can't be written, your own copies of its notebooks are opened, in ~/shardlab-notebooks.
    """
    from shardcourse.lessons.reader_copy import can_be_saved
    from shardcourse.repository import ROOT

    folder = (course or ROOT).resolve()
    if not (folder / FIRST_LESSON).exists():
        print(f"shardlab lab: there is no {FIRST_LESSON} in {folder}", file=sys.stderr)
        raise typer.Exit(2)
    if not can_be_saved(folder):
        folder = _own_copy(folder)
    _put_first("JUPYTER_CONFIG_PATH", folder / "grading")
    _put_first("PATH", Path(sys.executable).parent)  # formgrader calls alembic by its name
    _put_first("PYTHONPATH", ROOT)  # nbgrader looks in the course first, but its `grading` may have no code
    os.chdir(folder)
    options = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}", *context.args]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jupyterlab", *options])  # -P: no file here shadows a module


def _own_copy(course: Path) -> Path:
    from shardcourse.lessons.reader_copy import own_copy

    mine = Path.home() / "shardlab-notebooks"
    try:
        n_new = own_copy(course, mine)
    except OSError as error:
        why = f"{course} can't be written to, and your own notebooks can't be put into {mine}: {error}"
        print(f"shardlab lab: {why}. Name a home that has room: HOME=/folder shardlab lab", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"{course} can't be written to: your own notebooks are in {mine} ({n_new} new, the others as they were)")
    return mine


def _put_first(variable: str, place: Path) -> None:
    os.environ[variable] = os.pathsep.join(filter(None, [str(place), os.environ.get(variable)]))
