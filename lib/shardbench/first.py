"""A beginner's waiting time: from a fresh clone to a lesson's first cell, to the demo's table, and for the tests.

The clone is of the last commit, with a new `.venv`. pip does not download again what is in its cache.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import nbformat
from rich.console import Console
from rich.table import Table

from shardbench import environment

ROOT = Path(__file__).resolve().parents[2]
LESSON = "course/00_start_here.ipynb"
MEASURES = {
    "setup_s": "make setup",
    "first_cell_s": "from the clone to the first executed cell of a lesson",
    "demo_s": "from the clone to make demo's table",
    "clone_to_tests_s": "from the clone to the last line of make test",
    "test_s": "make test in a set-up environment, median",
    "busy_test_s": "make test beside four processes that only compute, median",
}


def run(root: Path = ROOT, tests: int = 3, busy_tests: int = 0) -> dict:
    """Return seconds by MEASURES, and every run of `make test` in `tests_s` and `busy_tests_s`.

    `demo_s` and `clone_to_tests_s` include the set-up but not the other steps, as if each came right after the set-up.
    Raises CalledProcessError if anything fails, a test included.
    """
    result: dict = {"benchmark": "first", "environment": environment()}
    with tempfile.TemporaryDirectory(prefix="shardlab-first-") as folder:
        began = time.time()
        _call("git", "clone", "--quiet", str(root), folder, cwd=root)
        _call("make", "setup", f"PYTHON={sys._base_executable}", cwd=folder)
        setup_s = round(time.time() - began, 1)
        _call(".venv/bin/shardlab", "run", LESSON, "--tier", "cpu", cwd=folder)
        first_cell_s = _first_cell_done(Path(folder, "build", "run", Path(LESSON).name)) - began
        began = time.time()
        _call("make", "demo", cwd=folder)
        demo_s = setup_s + time.time() - began
        tests_s = [_timed_tests(folder) for _ in range(tests)]
        with computing(4):
            busy_tests_s = [_timed_tests(folder) for _ in range(busy_tests)]
    result |= {"setup_s": setup_s, "first_cell_s": round(first_cell_s, 1), "demo_s": round(demo_s, 1)}
    if tests_s:
        result |= {"clone_to_tests_s": setup_s + tests_s[0], "test_s": statistics.median(tests_s), "tests_s": tests_s}
    if busy_tests_s:
        result |= {"busy_test_s": statistics.median(busy_tests_s), "busy_tests_s": busy_tests_s}
    return result


def show(result: dict) -> None:
    table = Table("", "seconds", header_style="bold")
    for name, words in MEASURES.items():
        if name in result:
            table.add_row(words, f"{result[name]:.0f}")
    Console().print(table)


def _timed_tests(folder: str) -> float:
    began = time.time()
    _call("make", "test", cwd=folder)
    return round(time.time() - began, 1)


@contextmanager
def computing(n: int) -> Iterator[None]:
    """Keep `n` processes computing inside the block, or until this process is killed."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _call(*command: str, cwd: str | Path) -> None:
    """Run a command. If it fails, print its output and raise CalledProcessError."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        done.check_returncode()


def _first_cell_done(executed: Path) -> float:
    """Return when the first cell ended, in seconds since the epoch, by papermill. Cells with parameters don't count."""
    code = [c for c in nbformat.read(executed, as_version=4).cells if c.cell_type == "code"]
    first = next(c for c in code if not {"parameters", "injected-parameters"} & set(c.metadata.tags))
    return datetime.fromisoformat(first.metadata.papermill.end_time).timestamp()
