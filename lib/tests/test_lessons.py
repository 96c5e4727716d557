"""Every lesson runs from top to bottom on the cpu tier, has the anatomy that it promises, and shows its own outputs.

Each rule is a function from a notebook to a list of problems: the tests also plant a mistake and see it found.
"""

import copy
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import papermill
import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "course").glob("*.ipynb"))
EXAMPLE = ROOT / "course" / "03_ddp_buckets.ipynb"  # to plant mistakes in
RUN_LIMIT_S = 300  # against hangs; a lesson takes about a minute on two cores


def code_cells(nb) -> list:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tagged(nb, tag: str) -> list:
    return [cell for cell in nb.cells if tag in cell.metadata.get("tags", [])]


def markdown(nb) -> str:
    return "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")


def anatomy_problems(nb, number: int) -> list[str]:
    """One question, parameters, a prediction that the student may leave open, folded answers, what to read next."""
    found, text = [], markdown(nb)
    title, *_, question = re.split(r"\n+", nb.cells[0].source)[:2]
    if not title.startswith(f"# {number}. "):
        found.append(f"the title is {title!r}, not '# {number}. ...'")
    if not re.fullmatch(r"\*\*.*\?\*\*", question):
        found.append("no question in bold stands below the title")
    parameters = tagged(nb, "parameters")
    if [cell.cell_type for cell in parameters] != ["code"] or not re.search(
        r"^tier = None\b", parameters[0].source, re.M
    ):
        found.append("not one code cell is tagged parameters and says `tier = None`")
    if not any("None" in cell.source for cell in tagged(nb, "prediction")):
        found.append("no cell tagged prediction waits for the student's figures")
    if text.count("<details><summary>Answer</summary>") < 2 or text.count("<details>") != text.count("</details>"):
        found.append("fewer than two exercises have a folded answer, or one is not closed")
    if "\n## What to read next\n" not in f"\n{text}\n":
        found.append("nothing to read next")
    return found


def format_problems(nb) -> list[str]:
    found = []
    if nb.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel is not python3")
    if len({cell.id for cell in nb.cells}) != len(nb.cells):
        found.append("two cells have one id")
    if any(len(cell.source.splitlines()) > 40 for cell in code_cells(nb)):
        found.append("a code cell is longer than a screen")
    return found


def output_kinds(cell) -> set[str]:
    """What a cell puts out, whatever it says: `stdout`, `image/png text/plain`, ..."""
    return {output.get("name") or " ".join(sorted(output.data)) for output in cell.outputs}


def output_problems(nb) -> list[str]:
    """The outputs of one clean run, and nothing of the machine that it ran on."""
    found, cells = [], code_cells(nb)
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("the cells were not run once, in order")
    printed = nbformat.writes(nbformat.v4.new_notebook(cells=cells))
    for folder in {str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir() + "/", 'File \\"/'} - {"/"}:
        if folder in printed:
            found.append(f"an output names a folder of the machine: {folder}")
    for cell in cells:
        if "error" in {output.output_type for output in cell.outputs} or "stderr" in output_kinds(cell):
            found.append(f"an error or a warning in {cell.source[:40]!r}")
    return found


def drift_problems(committed, executed) -> list[str]:
    """Running a lesson leaves its source alone, and what is committed is what running it puts out."""
    ran = [cell for cell in executed.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    if [cell.source for cell in ran] != [cell.source for cell in committed.cells]:
        return ["the source that ran is not the source that is committed"]
    pairs = zip(code_cells(committed), [cell for cell in ran if cell.cell_type == "code"], strict=True)
    return [
        f"other outputs than committed from {new.source[:40]!r}"
        for old, new in pairs
        if output_kinds(old) != output_kinds(new)
    ]


@pytest.fixture(params=LESSONS, ids=lambda path: path.stem)
def lesson(request) -> Path:
    return request.param


@pytest.fixture
def nb():
    return nbformat.read(EXAMPLE, as_version=4)


def test_there_are_lessons():
    assert LESSONS


def test_a_lesson_has_its_anatomy(lesson):
    committed = nbformat.read(lesson, as_version=4)
    nbformat.validate(committed)
    assert anatomy_problems(committed, int(lesson.stem[:2])) == []
    assert format_problems(committed) == []
    assert output_problems(committed) == []


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 60)
def test_a_lesson_runs(lesson, tmp_path):
    executed = papermill.execute_notebook(
        lesson,
        tmp_path / lesson.name,
        parameters={"tier": "cpu"},
        kernel_name="python3",
        cwd=tmp_path,
        progress_bar=False,
        execution_timeout=RUN_LIMIT_S,
    )
    assert drift_problems(nbformat.read(lesson, as_version=4), executed) == []
    warnings = [cell.source[:40] for cell in code_cells(executed) if "stderr" in output_kinds(cell)]
    assert warnings == []


def test_a_cell_that_raises_fails_the_run(tmp_path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match="assert 1 == 2"):
        papermill.execute_notebook(
            tmp_path / "broken.ipynb", tmp_path / "out.ipynb", kernel_name="python3", progress_bar=False
        )


def edit(nb, old: str, new: str) -> None:
    touched = [cell for cell in nb.cells if old in cell.source]
    assert touched, f"no cell holds {old!r}"
    for cell in touched:
        cell.source = cell.source.replace(old, new)


ANATOMY_MISTAKES = {
    "number": lambda nb: edit(nb, "# 3. ", "# 4. "),
    "no question": lambda nb: edit(nb, "?**", ".**"),
    "no parameters": lambda nb: tagged(nb, "parameters")[0].metadata.pop("tags"),
    "a tier of its own": lambda nb: edit(nb, "tier = None", "tier = 'gpu8'"),
    "no prediction": lambda nb: tagged(nb, "prediction")[0].metadata.pop("tags"),
    "an answer left open": lambda nb: edit(nb, "</details>", ""),
    "nothing to read": lambda nb: edit(nb, "What to read next", "The end"),
}


@pytest.mark.parametrize("slip", ANATOMY_MISTAKES.values(), ids=ANATOMY_MISTAKES)
def test_a_gap_in_the_anatomy_is_found(nb, slip):
    number = int(EXAMPLE.stem[:2])
    assert anatomy_problems(nb, number) == []
    slip(nb)
    assert len(anatomy_problems(nb, number)) == 1


def first_output(nb):
    return next(cell for cell in code_cells(nb) if cell.outputs).outputs[0]


OUTPUT_MISTAKES = {
    "run twice": lambda nb: code_cells(nb)[0].update(execution_count=99),
    "a path": lambda nb: first_output(nb).update(text=f"{ROOT}/lib"),
    "a traceback": lambda nb: first_output(nb).update(text='  File "/somewhere/x.py", line 1'),
    "a warning": lambda nb: first_output(nb).update(name="stderr"),
}


@pytest.mark.parametrize("slip", OUTPUT_MISTAKES.values(), ids=OUTPUT_MISTAKES)
def test_a_bad_output_is_found(nb, slip):
    assert output_problems(nb) == []
    slip(nb)
    assert output_problems(nb)


def test_drift_is_found(nb):
    changed, stale = copy.deepcopy(nb), copy.deepcopy(nb)
    edit(changed, "tier = None", "tier = 1")
    next(cell for cell in code_cells(stale) if cell.outputs).outputs.clear()
    assert drift_problems(nb, nb) == []
    assert len(drift_problems(nb, changed)) == len(drift_problems(stale, nb)) == 1
