"""What the grader's tests share: a referee, and answers made from a sample's cells as a notebook would make them."""

import os
from pathlib import Path

import cloudpickle
import nbformat
import pytest

from grading.check import ANSWERS
from grading.referee import Referee
from grading.samples import Sample

ROOT = Path(__file__).resolve().parents[2]
LAB = "lab2_ddp"
SOLUTION = ROOT / "solutions" / LAB / f"{LAB}.ipynb"


@pytest.fixture(scope="session")
def referee():
    """One crew for all submissions: here nobody is untrusted."""
    with Referee(LAB, same_player=True) as referee:
        yield referee


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Sample -> the pickled answers that its notebook would hand in."""

    def make(sample: Sample) -> dict[str, bytes]:
        monkeypatch.setenv(ANSWERS, str(tmp_path))
        run_cells(sample.notebook(SOLUTION))
        return {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    return make


def run_cells(nb: nbformat.NotebookNode) -> dict:
    """A notebook's names after all of its cells but the one that starts ranks."""
    names = {"__name__": "submission"}  # of no importable module, as in a notebook
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.metadata.nbgrader.grade_id != "experiment":
            exec(compile(cell.source, cell.metadata.nbgrader.grade_id, "exec"), names)
    return names


def pickled(source: str, name: str) -> bytes:
    """What `name` is after `source`, as an answer."""
    names = {"__name__": "submission"}
    exec(source, names)
    return cloudpickle.dumps(names[name])
