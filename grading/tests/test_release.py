"""labs/ is what nbgrader makes of solutions/: not edited, not behind, and without a word of an answer."""

import re
import shutil

import nbformat
import pytest
from submissions import ROOT

from grading.classroom import Classroom

LABS = sorted(p.name for p in (ROOT / "solutions").iterdir() if p.is_dir())


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A course directory of its own, with all labs released afresh."""
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "solutions", root / "solutions")
    classroom = Classroom(root)
    for lab in LABS:
        classroom.release(lab)
    return root / "labs"


@pytest.mark.parametrize("lab", LABS)
def test_labs_is_generated_from_solutions(lab, released):
    assert (ROOT / "labs" / lab / f"{lab}.ipynb").read_text() == (released / lab / f"{lab}.ipynb").read_text(), (
        "solutions/ changed: run `make release` and commit labs/"
    )


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_folder_holds_the_notebook_and_nothing_else(lab):
    assert [p.name for p in (ROOT / "labs" / lab).iterdir() if not p.name.startswith(".")] == [f"{lab}.ipynb"]


@pytest.mark.parametrize("lab", LABS)
def test_no_line_of_an_answer_is_released(lab):
    answers = {line for cell in _cells("solutions", lab) for line in _answer_lines(cell.source)}
    released = {line.strip() for cell in _cells("labs", lab) for line in cell.source.splitlines()}
    assert len(answers) > 10
    assert not answers & released
    assert not any("SOLUTION" in line or "HIDDEN" in line for line in released)


@pytest.mark.parametrize("lab", LABS)
def test_every_answer_leaves_a_gap_that_says_so(lab):
    gaps = [cell for cell in _cells("labs", lab) if cell.metadata.nbgrader.solution]
    assert gaps
    assert all("raise NotImplementedError  # your code here" in cell.source for cell in gaps)


@pytest.mark.parametrize("lab", LABS)
def test_papermill_finds_the_parameters(lab):
    tagged = [cell for cell in _cells("labs", lab) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert "tier = None" in tagged[0].source


def _cells(folder: str, lab: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(ROOT / folder / lab / f"{lab}.ipynb", as_version=4).cells


def _answer_lines(source: str) -> set[str]:
    """What says something: not a lone `try:` or `return`."""
    regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, flags=re.S)
    return {line.strip() for region in regions for line in region.splitlines() if len(line.strip()) > 12}
