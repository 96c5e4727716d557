"""What the grader's tests share: a referee, and a sample's answers."""

import os

import pytest
from submissions import LAB, SOLUTION, run_cells

from grading.check import ANSWERS
from grading.referee import Referee
from grading.samples import Sample


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
