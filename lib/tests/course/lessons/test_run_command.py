"""`shardlab run` as CI calls it: parameters reach the notebook, exit codes and the JUnit file say how it went."""

import json
from xml.etree import ElementTree

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from shardcourse.cli.app import app
from shardcourse.lessons import changed, folders
from shardcourse.lessons.parameters import parse
from shardcourse.lessons.reader_copy import can_be_saved, own_copy


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook that takes a tier and a number, and fails when the number is 3, in other ways when it is 4 or 9."""
    monkeypatch.setattr(folders, "ROOT", tmp_path)
    monkeypatch.setattr(changed, "DATA", [])
    defaults = new_code_cell("tier = None\nsize = 1\nname = 'x'", metadata={"tags": ["parameters"]})
    work = new_code_cell("assert size != 3, f'three \\x1b[1mof\\x1b[0m {name!r}'\nprint(size * 2, name)")
    raises = new_code_cell("if size == 4:\n    raise ValueError('[/tmp/x] [rank0]: lost')")
    killed = new_code_cell("import os\nif size == 9:\n    os.kill(os.getpid(), 9)")
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    cells = [new_markdown_cell("# Small"), defaults, raises, killed, work]
    nb = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(nb, tmp_path / "small.ipynb")
    return tmp_path / "small.ipynb"


def run(*words) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", *map(str, words)])
    return result.exit_code, result.output


def test_parameters_reach_the_notebook_as_papermill_takes_them_and_that_all_ran_is_no_failure(notebook, tmp_path):
    options = [
        "-p",
        "size",
        "21",
        "--parameter",
        "name=a b",
        "--json",
        tmp_path / "j",
        "--junit",
        tmp_path / "junit.xml",
    ]
    code, said = run(notebook, "--tier", "cpu", *options)
    assert code == 0, said
    record = json.loads((tmp_path / "j").read_text())
    assert (record["tier"], [n["problems"] for n in record["notebooks"]]) == ("cpu", [[]])
    ran = nbformat.read(tmp_path / "build" / "run" / "small.ipynb", as_version=4)
    assert ran.cells[-1].outputs[0].text == "42 a b\n"
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert suite.get("failures") == "0"
    assert suite.find("testcase/failure") is None
    assert float(suite.get("time")) > 0


def test_a_failure_is_exit_code_1_and_a_failure_in_the_junit_file(notebook, tmp_path):
    junit = tmp_path / "reports" / "junit.xml"
    code, _ = run(notebook, tmp_path / "absent.ipynb", "--tier", "cpu", "-p", "size", "3", "--junit", junit)
    assert code == 1
    suite = ElementTree.parse(junit).getroot()
    assert {k: suite.get(k) for k in ("tests", "failures", "errors")} == {"tests": "2", "failures": "2", "errors": "0"}
    small, absent = suite.findall("testcase")
    assert small.get("name") == "small"
    assert "AssertionError: three" in small.find("failure").get("message")
    assert absent.find("failure").get("message") == "there is no such notebook"


@pytest.mark.parametrize(("size", "why"), [(4, "ValueError: [/tmp/x] [rank0]: lost"), (9, "Kernel died")])
def test_however_a_notebook_fails_the_record_is_written(notebook, tmp_path, size, why):
    code, said = run(notebook, "--tier", "cpu", "-p", "size", str(size), "--json", tmp_path / "j")
    [found] = json.loads((tmp_path / "j").read_text())["notebooks"]
    assert code == 1 and why in found["problems"][0]
    assert why.split()[-1] in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--tier", "huge"], "no tier 'huge'"),
        (["-p", "sise", "3"], "small.ipynb has no parameter sise; it has tier, size, name"),
        (["-p", "size"], "as in -p seed 1"),
        (["-p", "not a name", "3"], "as in -p seed 1"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2_and_says_why(notebook, words, why):
    code, said = run(notebook, *words)
    assert code == 2
    assert why in said


def test_a_value_is_a_python_literal_or_text():
    pairs = ["a=1", "b=1e-3", "c=True", "d=None", "e=[1, 'x']", "f=cpu", "g=1=2", "h='3'"]
    values = {"a": 1, "b": 1e-3, "c": True, "d": None, "e": [1, "x"], "f": "cpu", "g": "1=2", "h": "3"}
    assert parse(pairs) == values


@pytest.mark.parametrize("is_there", [True, False])
def test_a_course_that_cannot_be_written_leaves_what_ran_in_the_users_cache(tmp_path, monkeypatch, is_there):
    monkeypatch.setattr(folders, "ROOT", tmp_path / "course")
    (tmp_path / "course" / "build" / "run" if is_there else tmp_path / "course").mkdir(parents=True)
    assert folders.build("run") == tmp_path / "course" / "build" / "run"
    monkeypatch.setattr(folders.os, "access", lambda path, mode: not path.is_relative_to(tmp_path / "course"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folders.build("run") == tmp_path / "cache" / "shardlab" / "run"


def test_what_is_copied_from_a_read_only_course_may_be_written(tmp_path):
    """Modes are not carried over: root, who runs many a test, would not notice otherwise."""
    (tmp_path / "course" / "lab" / "__pycache__").mkdir(parents=True)
    (tmp_path / "course" / "lab" / "lab.ipynb").write_text("{}")
    (tmp_path / "course" / "lab" / "__pycache__" / "x.pyc").write_text("")
    for path in ("course/lab/lab.ipynb", "course/lab", "course"):
        (tmp_path / path).chmod(0o555)
    folders.copy_files(tmp_path / "course", tmp_path / "mine")
    copied = sorted((tmp_path / "mine").rglob("*"))
    assert [p.name for p in copied] == ["lab", "lab.ipynb"]
    assert all(p.stat().st_mode & 0o200 for p in [tmp_path / "mine", *copied])


def test_own_copies_of_a_course_keep_what_their_reader_wrote(tmp_path):
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for name in ("course/00.ipynb", "course/.ipynb_checkpoints/00.ipynb", "labs/lab1/lab1.ipynb", "solutions/no.ipynb"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text("as it came")
    assert own_copy(theirs, mine) == 2
    (mine / "labs" / "lab1" / "lab1.ipynb").write_text("an evening's work")
    (theirs / "labs" / "lab2.ipynb").write_text("new")
    assert own_copy(theirs, mine) == 1
    found = {str(p.relative_to(mine)): p.read_text() for p in mine.rglob("*") if p.is_file()}
    assert found == {
        "course/00.ipynb": "as it came",
        "labs/lab1/lab1.ipynb": "an evening's work",
        "labs/lab2.ipynb": "new",
    }


def test_a_course_can_be_saved_if_all_of_it_can(tmp_path, monkeypatch):
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "00.ipynb").write_text("")
    assert can_be_saved(tmp_path)
    for locked in ("course", "course/00.ipynb"):
        monkeypatch.setattr("os.access", lambda path, mode, locked=locked: path != tmp_path / locked)
        assert not can_be_saved(tmp_path)


def test_a_home_that_takes_no_copy_is_said(tmp_path, monkeypatch):
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "00_start_here.ipynb").write_text("")
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setattr("shardcourse.lessons.reader_copy.can_be_saved", lambda course: False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(app, ["lab", "--course", str(tmp_path)])
    assert result.exit_code == 2
    assert "can't be put into" in result.output and "HOME=/folder shardlab lab" in result.output
