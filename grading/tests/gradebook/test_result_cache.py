"""What makes a stored result stale: every file of ours that decides a result, and no other."""

import ast
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from nbformat.v4 import new_code_cell, new_notebook
from submissions import LAB, LABS, ROOT

from grading.gradebook import result_cache
from grading.gradebook.result_cache import GRADER, Shelf, made_of
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judged, Settings, Submission
from grading.judge.verdict import Verdict

DECIDES = (
    "grading.judge.judge_submission",
    "grading.boxes.notebook_runner_in_box",
    "grading.boxes.rank_launcher_in_box",
    "grading.student.check",
)
DRAWS = "shardcourse.figures"  # the pictures beside a verdict, which decide no points


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours; None for any other name."""
    for folder in (ROOT, ROOT / "lib"):
        path = folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def imported(file: Path) -> set[str]:
    """Names that a file imports, also inside functions; `from a import b` may import a module a.b."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def reached(*modules: str) -> set[Path]:
    """Files of ours that these modules import, directly or not."""
    found, left = set(), list(modules)
    while left:
        module = left.pop()
        file = None if module.startswith(DRAWS) else file_of(module)
        if file and file not in found:
            found.add(file)
            left += imported(file)
    return found


def test_a_change_of_any_file_that_judges_makes_results_stale():
    labs = [lab_module(lab).__name__ for lab in LABS]
    own = {file for lab in labs for file in file_of(lab).parent.rglob("*.py")}
    answers = [f for f in (ROOT / "grading/references").rglob("*.py") if f.parent.name != "references"]
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in answers]
    own |= set(answers)
    deciding = reached(*DECIDES, *labs, *names) | own | {file_of("grading.gradebook.nbgrader_preprocessor")}
    assert len(deciding) > 100
    watched = {file for pattern in GRADER for file in ROOT.glob(pattern)}
    assert sorted(str(f.relative_to(ROOT)) for f in deciding - watched - own) == []


def test_every_pattern_names_files_that_exist():
    assert [pattern for pattern in GRADER if not list(ROOT.glob(pattern))] == []


def made(tmp_path: Path, lab: str, settings: Settings) -> dict[str, str]:
    return made_of(Submission(lab, new_notebook(cells=[new_code_cell("1")]), {}, tmp_path), settings)


def test_a_lab_has_the_digest_of_the_checks_that_judge_it_whatever_it_is_called(tmp_path):
    assert made(tmp_path, LAB, Settings())["lab"] == made(tmp_path, LAB.split("_")[0] + "_[x]", Settings())["lab"]
    assert len({made(tmp_path, lab, Settings())["lab"] for lab in LABS}) == len(LABS)


def test_another_answer_of_ours_makes_results_of_its_lab_stale(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "grading/references", tmp_path / "grading/references")
    monkeypatch.setattr(result_cache, "_ROOT", tmp_path)
    labs = [LAB, "lab9_experts"]
    before = [made(tmp_path / "handed_in", lab, Settings())["lab"] for lab in labs]
    changed = next((tmp_path / "grading/references" / LAB).glob("[!_]*.py"))
    changed.write_text(changed.read_text() + "\n")
    after = [made(tmp_path / "handed_in", lab, Settings())["lab"] for lab in labs]
    assert after[0] != before[0] and after[1] == before[1]


def test_settings_that_only_cost_time_make_nothing_stale(tmp_path):
    usual, now = Settings(), made(tmp_path, LAB, Settings())
    assert made(tmp_path, LAB, replace(usual, retries=9, at_a_time=4)) == now
    for other in (replace(usual, timeout=1), replace(usual, tier="gpu1"), replace(usual, parameters={"n": 1})):
        assert made(tmp_path, LAB, other)["lab"] != now["lab"]


def test_an_unclear_result_replaces_no_clear_one_of_the_same_submission(tmp_path):
    shelf, same, other = Shelf(tmp_path), {"submission": "a"}, {"submission": "b"}
    clear = Judged([], [Verdict("lab2.plan", 3, 3, "so")], "", 1.0)
    unclear = Judged([], [Verdict("lab2.plan", 0, 3, "noise", inconclusive=True)], "", 1.0)
    assert shelf.keep(LAB, "ada", same, clear) is clear
    assert shelf.keep(LAB, "ada", same, unclear) == clear
    assert shelf.get(LAB, "ada").judged == clear
    assert shelf.keep(LAB, "ada", other, unclear) is unclear
    assert shelf.get(LAB, "ada").judged == unclear


def test_a_record_of_another_form_is_none(tmp_path):
    shelf = Shelf(tmp_path)
    for text in ("", "3", '"a"', "[]", "{}", '{"verdicts": []}', '{"verdicts": {"a": 1}, "made_of": {}}'):
        (tmp_path / LAB).mkdir(exist_ok=True)
        shelf.file(LAB, "ada").write_text(text)
        assert shelf.get(LAB, "ada") is None
