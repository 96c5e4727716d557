"""Every lesson has the anatomy that it promises; and each rule is seen to find a planted mistake.

That lessons run, and say what their cells say, is for `make course`: it executes them and reads what they put out.
"""

import copy
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from shardcourse.lessons.book import WIDGET, as_page, is_run_of
from shardcourse.lessons.cells import code_cells, tagged
from shardcourse.lessons.executed import output_problems, unbacked_numbers
from shardcourse.lessons.lint import (
    anatomy_problems,
    claim_problems,
    form_problems,
    link_problems,
    number_of,
    prediction_problems,
    problems,
    table_problems,
)
from shardcourse.lessons.run import run_notebook
from shardcourse.lessons.tidy import tidied, tidy
from shardcourse.repository import ROOT
from shardlab.tier import TIERS

LESSONS = sorted((ROOT / "course").glob("*.ipynb"))
PAGES = sorted(
    [*(ROOT / "course").glob("*.md"), *ROOT.glob("labs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("lib/*.md")]
)
EXAMPLE = ROOT / "course" / "03a_ddp_buckets.ipynb"  # to plant mistakes in


@pytest.fixture
def nb():
    return nbformat.read(EXAMPLE, as_version=4)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_anatomy(lesson):
    assert problems(lesson) == []


def test_the_course_is_whole():
    numbers = [number_of(path) for path in LESSONS[:-1]]
    assert sorted({int(number.rstrip("ab")) for number in numbers}) == list(range(25))
    assert {f"{n[:-1]}a" for n in numbers if n.endswith("b")} <= set(numbers)
    assert LESSONS[-1].stem == "appendix_claims_on_trial"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_no_row_stands_outside_its_table(page):
    assert table_problems(page.read_text(encoding="utf-8")) == []


TORN = {
    "a blank line before the last row": "| a | b |\n|---|--:|\n| 1 | 2 |\n\n| 3 | 4 |",
    "no line below the head": "| a | b |\n| 1 | 2 |",
    "one row alone": "Text.\n\n| a | b |",
}


@pytest.mark.parametrize("text", TORN.values(), ids=TORN)
def test_a_torn_table_is_found(text):
    assert len(table_problems(text)) == 1


def test_a_whole_table_and_a_row_in_code_are_fine():
    table = "| a | b |\n|:-:|--:|\n| 1 | 2 |"
    assert table_problems(f"Text.\n\n{table}\n\nText.\n{table}\n\n```\n| x |\n```\nSizes |x| and a | b.") == []


# ---------------------------------------------------------------------------------------------------- planted mistakes


def edit(nb, old: str, new: str) -> None:
    touched = [cell for cell in nb.cells if old in cell.source]
    assert touched, f"no cell holds {old!r}"
    for cell in touched:
        cell.source = cell.source.replace(old, new)


def predict_nothing_that_is_read(nb) -> None:
    tagged(nb, "prediction")[0].source += "\nmy_other_guess = None"


MISTAKES = {
    "number": (anatomy_problems, lambda nb: edit(nb, "# 3a. ", "# 4a. ")),
    "no question": (anatomy_problems, lambda nb: edit(nb, "?**", ".**")),
    "no prediction": (anatomy_problems, lambda nb: tagged(nb, "prediction")[0].metadata.pop("tags")),
    "an answer left open": (anatomy_problems, lambda nb: edit(nb, "</details>", "")),
    "nothing to read": (anatomy_problems, lambda nb: edit(nb, "What to read next", "The end")),
    "no parameters": (form_problems, lambda nb: tagged(nb, "parameters")[0].metadata.pop("tags")),
    "a tier of its own": (form_problems, lambda nb: edit(nb, "tier = None", "tier = 'gpu8'")),
    "a long cell": (form_problems, lambda nb: code_cells(nb)[2].update(source="\n".join(["1"] * 41))),
    "an output": (form_problems, lambda nb: code_cells(nb)[2].outputs.append(new_output("stream", text="1"))),
    "an id of its own": (form_problems, lambda nb: nb.cells[3].update(id="deadbeef")),
    "a guess that nothing answers": (prediction_problems, predict_nothing_that_is_read),
    "a link to nowhere": (
        link_problems,
        lambda nb: edit(nb, "# 3a. Data parallel", "# 3a. [that](04_not_there.ipynb) "),
    ),
    "a heading that is not there": (
        link_problems,
        lambda nb: edit(nb, "# 3a. Data parallel", "# 3a. [that](#Not-a-heading) "),
    ),
    "a heading that a page does not have": (
        link_problems,
        lambda nb: edit(nb, "messages.md#lesson_03a", "messages.md#lesson_03c"),
    ),
    "claims not tried": (claim_problems, lambda nb: edit(nb, "claims_on_trial(3", "claims_on_trial(4")),
}


def found_by(rule, nb) -> list[str]:
    more = {anatomy_problems: ["3a"], claim_problems: ["3a"], link_problems: [EXAMPLE.parent]}
    if rule is form_problems and not any(cell.get("outputs") for cell in nb.cells) and nb.cells[3].id != "deadbeef":
        nb = tidied(nb)  # an edit changes the ids, which is not the mistake that is looked for
    return rule([nb] if rule is claim_problems else nb, *more.get(rule, []))


@pytest.mark.parametrize("rule, slip", MISTAKES.values(), ids=MISTAKES)
def test_a_gap_is_found(nb, rule, slip):
    assert found_by(rule, nb) == []
    slip(nb)
    assert len(found_by(rule, nb)) == 1


# --------------------------------------------------------------------------------------------------------------- tidy


def test_tidying_twice_changes_nothing_and_keeps_source_and_tags(tmp_path):
    nb = nbformat.read(EXAMPLE, as_version=4)
    ran = copy.deepcopy(nb)
    for cell in ran.cells:
        cell.id, cell.metadata["collapsed"] = cell.id[::-1], True
    code_cells(ran)[0].outputs.append(new_output("stream", text="hello"))
    nbformat.write(ran, tmp_path / "ran.ipynb")
    assert tidy(tmp_path / "ran.ipynb") and not tidy(tmp_path / "ran.ipynb")
    assert nbformat.read(tmp_path / "ran.ipynb", as_version=4) == nb


def test_equal_cells_get_ids_of_their_own():
    nb = tidied(new_notebook(cells=[new_code_cell("1"), new_code_cell("1")]))
    assert len({cell.id for cell in nb.cells}) == 2


# ------------------------------------------------------------------------------------------------------------ results


def executed(prose: str, code: str = "x", *outputs) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_markdown_cell(prose), new_code_cell(code, outputs=list(outputs))])


def said(text: str) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text=text)


BACKED = {
    "printed": executed("It takes 12.3 MiB.", "x", said("12.34 MiB")),
    "rounded": executed("It takes 12 MiB.", "x", said("12.34 MiB")),
    "a share": executed("It is 25 % of it.", "x", said("0.2503")),
    "in the code": executed("All 4096 of them.", "n = 4096"),
    "in a table": executed(
        "It takes 7.5 ms.", "x", new_output("display_data", {"text/html": "<td>7.5</td><td>ms</td>"})
    ),
    "with commas": executed("All 1,048,576 bytes.", "x", said("1,048,576")),
    "given": executed("It makes 312 TFLOP/s. <!-- given: 312 the data sheet -->"),
    "a formula": executed("So $t = 3.14$, and `x = 2.72`."),
    "a year, a part, a count": executed("In 2020 we had 4 ranks in part 12."),
}
UNBACKED = {
    "another figure": executed("It takes 12.3 MiB.", "x", said("12.44 MiB")),
    "too fine": executed("It takes 12.34 MiB.", "x", said("12.3 MiB")),
    "a multiple": executed("It takes 3 times as long.", "x", said("2.3")),
    "a unit": executed("It takes 16 GB."),
    "given elsewhere": executed("It makes 312 TFLOP/s. <!-- given: 313 the data sheet -->"),
}


@pytest.mark.parametrize("nb", BACKED.values(), ids=BACKED)
def test_a_number_that_a_cell_knows_is_backed(nb):
    assert unbacked_numbers(nb) == []


@pytest.mark.parametrize("nb", UNBACKED.values(), ids=UNBACKED)
def test_a_number_that_no_cell_knows_is_found(nb):
    assert len(unbacked_numbers(nb)) == 1


BAD_OUTPUTS = {
    "a path": said(f"{Path.home()}/lib"),
    "a traceback": said('  File "/somewhere/x.py", line 1'),
    "a warning": new_output("stream", name="stderr", text="UserWarning"),
    "an error": new_output("error", ename="ValueError", evalue="no", traceback=[]),
}


@pytest.mark.parametrize("output", BAD_OUTPUTS.values(), ids=BAD_OUTPUTS)
def test_a_bad_output_is_found(output):
    assert output_problems(executed("", "x", said("fine"))) == []
    assert len(output_problems(executed("", "x", output))) == 1


def test_a_run_says_what_went_wrong(tmp_path):
    broken = new_notebook(cells=[new_code_cell("tier = None"), new_code_cell("assert 1 == 2, 'no'")])
    broken.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(broken, tmp_path / "broken.ipynb")
    outcome = run_notebook(tmp_path / "broken.ipynb", tmp_path / "out.ipynb", {"tier": "cpu"})
    assert outcome.problems == ["cell 2: AssertionError: no"]


def test_a_lesson_is_held_to_its_prose(tmp_path):
    (tmp_path / "course").mkdir()
    lesson = new_notebook(cells=[new_code_cell("tier = None"), new_markdown_cell("It is 12.5 MiB.")])
    lesson.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(lesson, tmp_path / "course" / "00.ipynb")
    (problem,) = run_notebook(tmp_path / "course" / "00.ipynb", tmp_path / "out.ipynb", {"tier": "cpu"}).problems
    assert "12.5" in problem


def test_a_lesson_on_gpus_is_not_held_to_the_numbers_of_cpu_ranks(tmp_path, monkeypatch):
    (tmp_path / "course").mkdir()
    lesson = new_notebook(cells=[new_code_cell("tier = None"), new_markdown_cell("It is 12.5 MiB.")])
    lesson.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(lesson, tmp_path / "course" / "00.ipynb")
    monkeypatch.setattr("shardcourse.lessons.run.detect", TIERS.get)
    found = {
        tier: run_notebook(tmp_path / "course" / "00.ipynb", tmp_path / "out.ipynb", {"tier": tier}).problems
        for tier in ("cpu8", "gpu4")
    }
    assert found["gpu4"] == [] and "12.5" in found["cpu8"][0]


# --------------------------------------------------------------------------------------------------------------- book


def as_it_ran(lesson: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """What papermill makes of it."""
    ran = copy.deepcopy(lesson)
    injected = new_code_cell("tier = 'cpu'", metadata={"tags": ["injected-parameters"]})
    ran.cells.insert(1, injected)
    for count, cell in enumerate(code_cells(ran), 1):
        cell.execution_count = count
    return ran


@pytest.mark.parametrize(
    "slip, is_run",
    [
        (lambda ran: None, True),
        (lambda ran: ran.cells[-1].update(source="# another"), False),
        (lambda ran: code_cells(ran)[-1].update(execution_count=None), False),
    ],
    ids=["as it is", "of an older source", "not to the end"],
)
def test_a_run_is_taken_into_the_book_if_it_is_of_the_lesson_as_it_stands(nb, slip, is_run, tmp_path):
    ran = as_it_ran(nb)
    slip(ran)
    nbformat.write(ran, tmp_path / "ran.ipynb")
    assert is_run_of(tmp_path / "ran.ipynb", EXAMPLE) == is_run
    assert not is_run_of(tmp_path / "missing.ipynb", EXAMPLE)


def test_a_page_has_no_widget_and_nothing_of_papermill(nb):
    ran = as_it_ran(nb)
    code_cells(ran)[1].outputs = [new_output("display_data", {WIDGET: {"model_id": "1"}, "text/plain": "Box()"})]
    page = as_page(ran)
    assert [cell.source for cell in page.cells] == [cell.source for cell in nb.cells]
    assert WIDGET not in nbformat.writes(page) and "papermill" not in nbformat.writes(page)
