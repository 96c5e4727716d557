"""Who has nothing yet waits how long? From a fresh clone to a lesson's first cell, to the demo's table, for the tests.

The clone is of the last commit, and its `.venv` is made anew; what pip has in its cache it does not download again.
"""

import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import nbformat
from rich.console import Console
from rich.table import Table

from shardlab.bench import environment
from shardlab.lessons.place import ROOT

LESSON = "course/00_start_here.ipynb"
MEASURES = {
    "setup_s": "make setup",
    "first_cell_s": "from the clone to the first executed cell of a lesson",
    "demo_s": "from the clone to make demo's table",
    "test_s": "make test, after that",
}


def run(root: Path = ROOT) -> dict:
    """Seconds by MEASURES: the demo's contain the set-up, as if it had come first, and not the lesson."""
    result = {"benchmark": "first", "environment": environment()}
    with tempfile.TemporaryDirectory(prefix="shardlab-first-") as folder:
        began = time.time()
        _call("git", "clone", "--quiet", str(root), folder, cwd=root)
        _call("make", "setup", f"PYTHON={sys._base_executable}", cwd=folder)
        setup_s = time.time() - began
        _call(".venv/bin/shardlab", "run", LESSON, "--tier", "cpu", cwd=folder)
        first_cell_s = _first_cell_done(Path(folder, "build", "run", Path(LESSON).name)) - began
        began = time.time()
        _call("make", "demo", cwd=folder)
        demo_s = setup_s + time.time() - began
        began = time.time()
        _call("make", "test", cwd=folder)
        test_s = time.time() - began
    seconds = zip(MEASURES, (setup_s, first_cell_s, demo_s, test_s), strict=True)
    return result | {name: round(value, 1) for name, value in seconds}


def show(result: dict) -> None:
    table = Table("", "seconds", header_style="bold")
    for name, words in MEASURES.items():
        table.add_row(words, f"{result[name]:.0f}")
    Console().print(table)


def _call(*command: str, cwd: str | Path) -> None:
    """Raises CalledProcessError, after showing what it said, if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        done.check_returncode()


def _first_cell_done(executed: Path) -> float:
    """Seconds since the epoch, as papermill noted them; cells that only set parameters don't count."""
    code = [c for c in nbformat.read(executed, as_version=4).cells if c.cell_type == "code"]
    first = next(c for c in code if not {"parameters", "injected-parameters"} & set(c.metadata.tags))
    return datetime.fromisoformat(first.metadata.papermill.end_time).timestamp()
