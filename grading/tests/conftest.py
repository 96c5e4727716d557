"""What the grader's tests share: a referee, and answers made from a sample's cells as a notebook would make them."""

import os
from pathlib import Path

import pytest

from grading.check import ANSWERS
from grading.referee import Referee
from grading.samples import Sample

LAB = "lab2_ddp"
SOLUTION = Path(__file__).resolve().parents[2] / "solutions" / LAB / f"{LAB}.ipynb"


@pytest.fixture(scope="session")
def referee():
    with Referee(LAB) as referee:
        yield referee


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Sample -> the pickled answers that its notebook would hand in."""

    def make(sample: Sample) -> dict[str, bytes]:
        monkeypatch.setenv(ANSWERS, str(tmp_path))
        cells = {"__name__": "submission"}  # names that belong to no importable module, as in a notebook
        for cell in sample.notebook(SOLUTION).cells:
            if cell.cell_type == "code" and cell.metadata.nbgrader.grade_id != "experiment":
                exec(compile(cell.source, cell.metadata.nbgrader.grade_id, "exec"), cells)
        return {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    return make
