"""Which lessons run again: what a lesson imports decides, however deep and wherever; and every lesson has its turn."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from shardcourse.lessons import changed

FILES = {
    "__init__.py": "",
    "a.py": "def later():\n    import lib_of_ours.deep.b\n",
    "deep/__init__.py": "",
    "deep/b.py": "from lib_of_ours import c\n",
    "c.py": "",
    "other.py": "",
}


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Eight notebooks that import `a`, and a package of ours, in which a imports b, and b imports c."""
    package = tmp_path / "lib_of_ours"
    for name, source in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    monkeypatch.setattr(changed, "PACKAGES", {"lib_of_ours": package})
    for i in range(8):
        cells = [new_code_cell("%matplotlib inline\n!ls\nfrom lib_of_ours import a")]
        nbformat.write(new_notebook(cells=cells), tmp_path / f"{i}.ipynb")
    return tmp_path


def record(course) -> list:
    notebooks = sorted(course.glob("*.ipynb"))
    ran = [{"notebook": n.stem, "problems": [], "digest": changed.digest(n)} for n in notebooks]
    (course / "record.json").write_text(json.dumps({"notebooks": ran}))
    return notebooks


def test_every_lesson_that_did_not_change_has_its_turn(course):
    notebooks = record(course)
    turns = [changed.chosen(notebooks, course / "record.json", turn) for turn in range(5, 9)]
    assert [len(turn) for turn in turns] == [2, 2, 2, 2]
    assert sorted(n for turn in turns for n in turn) == notebooks


@pytest.mark.parametrize("name, runs", [(name, 2 if name == "other.py" else 8) for name in FILES])
def test_a_module_that_changed_brings_back_the_lessons_that_import_it(course, name, runs):
    notebooks = record(course)
    with (course / "lib_of_ours" / name).open("a") as file:
        file.write("x = 1\n")
    assert len(changed.chosen(notebooks, course / "record.json", 0)) == runs


def test_a_script_beside_a_lesson_brings_back_the_lesson_that_imports_it(course):
    (course / "script.py").write_text("")
    cells = [new_code_cell("import script  # beside"), new_code_cell("import script")]
    for name, cell in zip("01", cells, strict=True):
        nbformat.write(new_notebook(cells=[cell]), course / f"{name}.ipynb")
    before = [changed.digest(course / f"{i}.ipynb") for i in range(3)]
    (course / "script.py").write_text("x = 1\n")
    after = [changed.digest(course / f"{i}.ipynb") for i in range(3)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


def test_a_cell_that_changed_or_a_run_that_failed_brings_its_lesson_back(course):
    notebooks = record(course)
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), notebooks[5])
    ran = json.loads((course / "record.json").read_text())
    ran["notebooks"][6]["problems"] = ["it failed"]
    (course / "record.json").write_text(json.dumps(ran))
    assert set(changed.chosen(notebooks, course / "record.json", 0)) >= {notebooks[5], notebooks[6]}


def test_a_lesson_that_the_record_does_not_know_runs(course):
    notebooks = record(course)
    (course / "record.json").write_text('{"notebooks": []}')
    assert changed.chosen(notebooks, course / "record.json", 0) == notebooks
