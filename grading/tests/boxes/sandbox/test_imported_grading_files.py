"""A box shows what the program in it imports, and so neither a judge nor an answer of ours."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import deadline_s

from grading.boxes import rank_launcher_in_box
from grading.boxes.sandbox import Bubblewrap, Limits
from grading.boxes.sandbox.boxed_program import clean_environment
from grading.boxes.sandbox.imported_grading_files import files_of
from grading.judge.find_lab import lab_module
from grading.judge.reference_lookup import answers_for

ROOT = Path(__file__).resolve().parents[4]
LABS = sorted(place.name for place in (ROOT / "solutions").iterdir())
LAUNCHER = rank_launcher_in_box.__name__
bubblewrap = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=Bubblewrap.obstacle() or "it works")


def shown(*modules: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in files_of(*modules) if path.suffix == ".py"}


def judges_of(lab: str) -> set[str]:
    """The files of the lab's judges: where its checks' functions and classes are written."""
    found = [getattr(check.judge, "func", check.judge) for check in lab_module(lab).CHECKS.values()]  # of a partial
    sources = (inspect.getsourcefile(judge if inspect.isfunction(judge) else type(judge)) for judge in found)
    return {str(Path(source).relative_to(ROOT)) for source in sources}


@pytest.mark.parametrize("lab", LABS)
def test_no_judge_and_no_answer_is_beside_a_submissions_ranks(lab):
    there = shown(LAUNCHER, lab_module(lab).DRILLS)
    assert f"grading/checks/{lab}/on_ranks.py" in there
    assert not there & judges_of(lab)
    assert not [path for path in there if path.startswith("grading/references")]
    others = {path.split("/")[2] for path in there if path.startswith("grading/checks/lab")}
    assert others == {lab}


@pytest.mark.parametrize("lab", LABS)
def test_only_the_references_box_has_our_answers(lab):
    _, ours = answers_for(lab)
    in_one_process = "lab3_zero", "lab7_debug", "lab10_eight_bits"  # what they are compared with is computed so
    assert ours or lab in in_one_process
    if ours:
        assert f"grading/references/{lab}/__init__.py" in shown(LAUNCHER, lab_module(lab).DRILLS, ours)


def test_a_notebooks_box_has_nothing_of_a_lab():
    assert not [
        path for path in shown("grading.boxes.notebook_runner_in_box", "grading.student.check") if "/checks/" in path
    ]


def test_nobody_imports_our_answers_but_by_name():
    """Judges ask for them by `Session.solve`, and a launcher is told their module; so a kit can do without."""
    for room in ("boxes", "judge", "checks", "student"):
        for file in (ROOT / "grading" / room).rglob("*.py"):
            names = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
            assert not any("references" in ast.unparse(n) for n in names), file


@bubblewrap
@pytest.mark.parametrize("lab", [LABS[0], *(pytest.param(lab, marks=pytest.mark.night) for lab in LABS[1:])])
def test_what_is_shown_is_enough_and_no_more(lab):
    """The drills can be imported in the box, and the judges' files and our answers are not there."""
    drills = lab_module(lab).DRILLS
    hidden = [*judges_of(lab), "grading/references", "grading/samples", "solutions"]
    ask = f"import os, sys, {LAUNCHER}, {drills}; print(*(p for p in sys.argv[1:] if os.path.exists(p)))"
    box = Bubblewrap(Limits.of_this_machine())
    command = box.command([sys.executable, "-c", ask, *(str(ROOT / p) for p in hidden)], (), (LAUNCHER, drills))
    environment = clean_environment("/tmp", own_namespaces=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=deadline_s(60), check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
