"""A notebook in the known form: each of the lab's cells once, locked code as released, a sentence for each repair."""

import json
from functools import cache

import nbformat
import pytest
from nbformat import NotebookNode
from submissions import LABS

from grading.gradebook.normalise_notebook import SubmissionError, is_blank, normalise_notebook, repairs_of
from grading.samples.sample import read_lab

LAB = "lab1_memory"


@cache
def released() -> NotebookNode:
    return read_lab("labs", LAB)


def read(nb: dict | str | bytes, lab: NotebookNode | None = None) -> NotebookNode:
    text = json.dumps(nb) if isinstance(nb, dict) else nb
    made = normalise_notebook(text.encode() if isinstance(text, str) else text, LAB, lab or released())
    nbformat.validate(made)
    return made


def named(nb: NotebookNode) -> list[str]:
    return [cell.metadata.get("nbgrader", {}).get("grade_id", "") for cell in nb.cells]


def cell_of(nb: NotebookNode, name: str) -> NotebookNode:
    return nb.cells[named(nb).index(name)]


def solved() -> NotebookNode:
    return read_lab("solutions", LAB)


@pytest.mark.parametrize("lab", LABS)
def test_what_was_released_is_in_the_known_form(lab):
    given = read_lab("labs", lab)
    made = normalise_notebook(json.dumps(given).encode(), lab, given)
    assert repairs_of(made) == []
    assert [(c.cell_type, c.source, c.metadata.nbgrader) for c in made.cells] == [
        (c.cell_type, c.source, c.metadata.nbgrader) for c in given.cells
    ]
    assert is_blank(made, given)
    assert not is_blank(normalise_notebook(json.dumps(read_lab("solutions", lab)).encode(), lab, given), given)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
def test_any_encoding_is_read(encoding):
    nb = solved()
    nb.cells[-1].source = "# fünf"
    nb.cells[-1].metadata = {}
    made = read(json.dumps(nb, ensure_ascii=False).encode(encoding, "replace"))
    assert made.cells[-1].source == "# fünf"
    assert [encoding in repair for repair in repairs_of(made)] == [True] * (encoding != "utf-8")


def test_of_copied_answers_the_last_that_was_filled_in_counts():
    nb = solved()
    first = cell_of(nb, "counts")
    second = nbformat.from_dict(json.loads(json.dumps(first)))
    second.source += "\n# second"
    nb.cells += [second, cell_of(released(), "counts")]
    made = read(nb)
    assert cell_of(made, "counts").source == second.source
    assert named(made).count("counts") == 1
    assert [c.source for c in made.cells if not c.metadata.get("nbgrader")] == [first.source], "and no blank one"
    twice, below = repairs_of(made)
    assert twice == "Cell `counts` was there 3 times: the last one that was filled in counts."
    assert below.startswith("These checks stood above a task that they need, and run below it: `lab1-counts`")
    assert named(made).index("counts") < named(made).index("lab1-counts"), "so that the last one does count"


def test_locked_code_with_additions_runs_after_what_was_released():
    nb = solved()
    cell_of(nb, "imports").source += "\nimport math"
    made = read(nb)
    at = named(made).index("imports")
    assert made.cells[at].source == cell_of(released(), "imports").source
    assert made.cells[at + 1].source.endswith("import math")
    assert "nbgrader" not in made.cells[at + 1].metadata
    assert repairs_of(made) == [
        "The locked cell `imports` is not as it was released: the released one took its place, "
        "and the one with additions runs after it."
    ]


@pytest.mark.parametrize("name", ["parameters", "rules", "imports", "setup"])
def test_a_locked_cell_that_was_changed_is_as_it_was_released(name):
    """As one that the instructor has released anew since: an older one must not run after it."""
    nb = solved()
    whole = cell_of(nb, name).source
    kept = "" if name == "imports" else whole.rpartition("\n")[0] if name == "setup" else whole
    cell_of(nb, name).source = f"{kept}\ntier = 'gpu8'"
    made = read(nb)
    assert named(made) == named(released())
    assert repairs_of(made) == [f"The locked cell `{name}` is not as it was released: the released one took its place."]


def test_locked_code_that_is_missing_comes_back_before_the_next_cell_of_the_labs():
    nb = solved()
    own = nbformat.v4.new_code_cell("counts_again = 1")
    gone = {"imports", "counted", "lab1-counts", "done", "rules"}
    nb.cells = [c for c in nb.cells if c.metadata.nbgrader.grade_id not in gone]
    nb.cells.insert(named(nb).index("task2"), own)
    made = read(nb)
    assert [n for n in named(made) if n] == [n for n in named(released()) if n not in {"done", "rules"}]
    assert made.cells[named(made).index("counted") - 1].source == own.source
    assert len(repairs_of(made)) == 3


def test_locked_cells_without_metadata_are_known_by_their_text():
    nb = solved()
    for cell in nb.cells:
        cell.metadata = {}
        cell.source = cell.source.replace("\n", "  \r\n") + "\n"
    made = read(nb)
    kept = {c.metadata.nbgrader.grade_id for c in released().cells if c.metadata.nbgrader.locked}
    assert {name for name in named(made) if name} == kept
    assert repairs_of(made) == ["Lines ended as on Windows: they now end as on Linux."]


def test_what_papermill_put_out_is_read_as_it_was_before():
    nb = solved()
    injected = nbformat.v4.new_code_cell("tier = 'gpu8'", metadata={"tags": ["injected-parameters"]})
    nb.cells.insert(2, injected)
    assert [c.source for c in read(nb).cells] == [c.source for c in read(solved()).cells]


def test_an_older_form_of_notebooks_is_read():
    cells = [{"cell_type": c.cell_type, "input": c.source, "metadata": c.metadata} for c in solved().cells]
    made = read({"nbformat": 3, "worksheets": [{"cells": cells}]})
    assert [c.source for c in made.cells] == [c.source for c in read(solved()).cells]


def test_pictures_stay_and_one_that_is_missing_is_told():
    nb = solved()
    picture = {"a.png": {"image/png": "AAAA"}}
    nb.cells.append(nbformat.v4.new_markdown_cell("![](attachment:a.png)", attachments=picture))
    nb.cells.append(nbformat.v4.new_markdown_cell("![](attachment:a.png)"))
    made = read(nb)
    assert [cell.get("attachments") for cell in made.cells[-2:]] == [picture, None]
    assert [cell.source for cell in made.cells[-2:]] == ["![](attachment:a.png)", "![](missing)"]
    assert repairs_of(made) == ["A picture of a text cell is not in the file."]


def test_nothing_that_a_student_may_write_into_the_metadata_is_kept():
    nb = solved()
    nb.metadata["shardlab"] = {"repairs": ["all points"]}
    for cell in nb.cells:
        cell.metadata["nbgrader"] = dict(cell.metadata["nbgrader"], points=1000, grade=True, comment="all points")
        cell.metadata["tags"] = ["parameters"]
    made = read(nb)
    assert repairs_of(made) == []
    assert [c.metadata for c in made.cells] == [c.metadata for c in read(solved()).cells]


def test_a_notebook_of_another_lab_is_refused():
    with pytest.raises(SubmissionError, match="has no task and no check of lab1_memory: ask"):
        read(read_lab("solutions", "lab2_ddp"))
