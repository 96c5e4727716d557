"""labs/ is what nbgrader makes of solutions/: not edited, not behind, without a word of an answer; and what a lab's
statement says of points and budgets is what its judges apply."""

import ast
import importlib
import pkgutil
import re
import shutil
from itertools import pairwise

import nbformat
import pytest
from submissions import LABS, ROOT

from grading.gradebook.manually_graded_cells import MOST_WORDS, STUB, count_words, is_written
from grading.gradebook.nbgrader_classroom import Classroom
from grading.judge.find_lab import check_name, lab_module
from grading.judge.reference_lookup import answers_for
from grading.samples.sample import read_lab, samples

TIERS = ("cpu", "gpu1", "gpu4", "gpu8")
LONG, SHORT = 45, 12  # characters: a line that says enough by itself, and one that says nothing


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


def test_every_lab_has_its_checks_and_its_class():
    assert {m.name for m in pkgutil.iter_modules([ROOT / "grading" / "checks"]) if m.ispkg} == set(LABS)
    assert {p.parent.name for p in (ROOT / "grading" / "samples").glob("*/class.toml")} == set(LABS)


# Nothing of an answer


@pytest.mark.parametrize("lab", LABS)
def test_no_part_of_an_answer_is_released(lab):
    parts, released = _parts_of_answers(lab), _stripped(_text("labs", lab))
    assert len(parts) > 5
    assert [part for part in parts if part in released] == []


@pytest.mark.parametrize("lab", LABS)
def test_a_part_of_an_answer_would_be_found_wherever_it_stands(lab):
    for part in _parts_of_answers(lab):
        indented = "".join(f"    {line}\n\n" for line in part.splitlines())
        assert part in _stripped(_text("labs", lab) + "\n" + indented)


@pytest.mark.parametrize("lab", LABS)
def test_no_part_of_a_model_argument_or_of_its_rubric_is_released(lab):
    (cell,), (answer,) = (filter(is_written, read_lab(folder, lab).cells) for folder in ("labs", "solutions"))
    assert cell.source == STUB
    assert 100 <= count_words(answer.source) <= MOST_WORDS
    everything = [(ROOT / "labs" / "README.md").read_text(encoding="utf-8"), *(_text("labs", each) for each in LABS)]
    texts = " ".join("\n".join(everything).split())
    parts = _parts_of_prose(answer.source + "\n" + _rubric(lab))
    assert len(parts) > 15
    assert [part for part in parts if part in texts] == []


@pytest.mark.parametrize("lab", LABS)
def test_no_hidden_name_or_value_is_released(lab):
    text = _text("labs", lab)
    assert not [name for name in _hidden(lab) if re.search(rf"\b{re.escape(name)}\b", text)]
    assert not re.search(r"SOLUTION|HIDDEN|solutions/|grading\.(checks|samples)", text)
    assert _hidden(lab), "nothing was looked for"


@pytest.mark.parametrize("lab", LABS)
def test_nothing_of_the_referee_is_imported_but_check(lab):
    for cell in _code_cells("labs", lab):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "grading":
                assert (node.module, [a.name for a in node.names]) == ("grading", ["check"])
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("grading") for a in node.names))


@pytest.mark.parametrize("folder", ["labs", "solutions"])
@pytest.mark.parametrize("lab", LABS)
def test_no_output_is_committed(lab, folder):
    assert not [c for c in _code_cells(folder, lab) if c.outputs or c.execution_count]


@pytest.mark.parametrize("lab", LABS)
def test_every_answer_leaves_a_gap_that_says_so(lab):
    gaps = [cell for cell in read_lab("labs", lab).cells if cell.metadata.nbgrader.solution]
    assert len(gaps) > 1
    assert all("raise NotImplementedError  # your code here" in cell.source for cell in gaps if not is_written(cell))


@pytest.mark.parametrize("lab", LABS)
def test_every_gap_is_left_blank_by_a_sample(lab):
    gaps = {c.metadata.nbgrader.grade_id for c in _code_cells("labs", lab) if c.metadata.nbgrader.solution}
    assert {gap for s in samples(lab) for gap in s.blank} == gaps


# What the statement says


@pytest.mark.parametrize("lab", LABS)
def test_points_are_those_that_the_statement_says(lab):
    checks = {name: check.points for name, check in lab_module(lab).CHECKS.items()}
    intro = read_lab("labs", lab).cells[0].source
    rows = re.findall(r"^\| `(lab\d+\.\w+)` \|.*\| ([\d.]+) \|$", intro, flags=re.M)
    assert {name: float(points) for name, points in rows} == checks
    graded = [c for c in read_lab("labs", lab).cells if c.metadata.nbgrader.grade and not is_written(c)]
    assert {check_name(c.metadata.nbgrader.grade_id): c.metadata.nbgrader.points for c in graded} == checks
    assert re.search(rf"\b{sum(checks.values()):g} points", intro)


@pytest.mark.parametrize("lab", LABS)
def test_one_argument_is_asked_for_and_its_points_are_said(lab):
    intro, *cells = read_lab("labs", lab).cells
    (cell,) = filter(is_written, cells)
    points = cell.metadata.nbgrader.points
    assert re.findall(r"^\| your argument \|.*\| (\d+) \|$", intro.source, flags=re.M) == [str(points)]
    assert f"points are graded automatically, and {points} by hand." in intro.source
    question = next(c.source for c in cells if c.metadata.nbgrader.grade_id == "argument_task")
    assert f"up to **{MOST_WORDS} words**" in question and "three points: one for the claim" in question
    assert (
        len(re.findall(r"^\| (the claim|own figures|the reason) \| .+ \| .+ \|$", _rubric(lab), flags=re.M)) == points
    )


@pytest.mark.parametrize("lab", LABS)
def test_the_statement_says_how_long_it_takes_and_what_is_allowed_on_each_tier(lab):
    text = _text("labs", lab)
    assert re.search(r"^About (\d|[a-z]+).* (hours?|minutes)\b", read_lab("labs", lab).cells[0].source, flags=re.M)
    assert [tier for tier in TIERS if f"`{tier}`" not in text] == []


@pytest.mark.parametrize("lab", LABS)
def test_budgets_are_those_that_the_judges_apply(lab):
    shown = [c.source for c in _code_cells("labs", lab) if c.metadata.nbgrader.grade_id == "budgets"]
    drills = importlib.import_module(lab_module(lab).DRILLS)
    assert bool(shown) == hasattr(drills, "BUDGETS")
    if shown:
        literal = next(
            n for n in ast.parse(shown[0]).body if isinstance(n, ast.Assign) and n.targets[0].id == "BUDGETS"
        )
        assert ast.literal_eval(literal.value) == drills.BUDGETS


@pytest.mark.parametrize("lab", LABS)
def test_a_graded_cell_hands_in_and_does_nothing_else(lab):
    for cell in _code_cells("solutions", lab):
        if cell.metadata.nbgrader.grade:
            name = check_name(cell.metadata.nbgrader.grade_id)
            assert re.fullmatch(rf'check\("{re.escape(name)}", \w+, tier\)', cell.source.strip()), cell.source


@pytest.mark.parametrize("lab", LABS)
def test_papermill_finds_the_parameters(lab):
    tagged = [c for c in read_lab("labs", lab).cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert "tier = None" in tagged[0].source


@pytest.mark.parametrize("lab", LABS)
def test_the_class_has_right_ones_a_partial_one_and_six_wrong_ones(lab):
    checks, everyone = lab_module(lab).CHECKS, samples(lab)
    right = [s for s in everyone if not s.points]
    partial = [s for s in everyone if any(0 < p < checks[name].points for name, p in s.points.items()) or s.blank]
    wrong = [s for s in everyone if s.points and not s.blank]
    assert len(right) >= 3, "the solution and two others"
    assert partial
    assert len(wrong) >= 6
    assert all(s.cause for s in everyone if s.points)


def _text(folder: str, lab: str) -> str:
    return "\n".join(cell.source for cell in read_lab(folder, lab).cells)


def _code_cells(folder: str, lab: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in read_lab(folder, lab).cells if cell.cell_type == "code"]


def _parts_of_answers(lab: str) -> list[str]:
    """Long lines, and pairs of lines that follow on each other: a short line alone may well stand in given code.

    Answers that begin with given code repeat it: the lab names these cells, GIVEN_CELLS; what stands there is no leak.
    """
    cells = _code_cells("solutions", lab)
    regions = [r for c in cells for r in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", c.source, flags=re.S)]
    parts = []
    for lines in (_stripped(region).splitlines() for region in regions):
        parts += [line for line in lines if len(line) > LONG]
        parts += [f"{a}\n{b}" for a, b in pairwise(lines) if min(len(a), len(b)) > SHORT and len(a + b) > LONG]
    given = [c.source for c in cells if c.metadata.nbgrader.grade_id in getattr(lab_module(lab), "GIVEN_CELLS", ())]
    return [part for part in parts if part not in _stripped("\n".join(given))]


def _parts_of_prose(text: str) -> list[str]:
    """Sentences, and what stands between two bars of a table, however their lines are broken."""
    parts = re.split(r"(?<=[.:?]) | \| ", " ".join(text.split()))
    return [part for part in parts if len(part) > 2 * SHORT]


def _rubric(lab: str) -> str:
    return (ROOT / "solutions" / lab / "rubric.md").read_text(encoding="utf-8")


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _hidden(lab: str) -> set[str]:
    """The judges' own names, all but BUDGETS, and what our answers declare hidden."""
    module = lab_module(lab)
    _, ours = answers_for(lab)
    hidden = set(getattr(importlib.import_module(ours), "HIDDEN", ())) if ours else set()
    package = importlib.import_module(module.__package__)
    for m in pkgutil.iter_modules(package.__path__):
        constants = vars(importlib.import_module(f"{package.__name__}.{m.name}"))
        hidden |= {name for name in constants if name.isupper() and len(name) > 6 and name != "BUDGETS"}
    return hidden
