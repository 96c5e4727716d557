"""The students' kit: nothing of it answers a lab, and `check` judges there as where we have our answers."""

import base64
import json
import lzma
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import nbformat
import pytest
from deadlines import deadline_s
from submissions import LABS, ROOT

from grading.gradebook.manually_graded_cells import is_written
from grading.judge import reference_lookup
from grading.judge.find_lab import lab_module
from grading.judge.judge_answers import Referee
from grading.judge.reference_lookup import NotRecorded, OurAnswers, RecordedAnswers, answers_for, key_of
from grading.samples.sample import read_lab, samples
from grading.samples.trial import handed_in
from grading.student_kit import make
from grading.student_kit.make import KitError, files_of_students, make_kit
from grading.student_kit.record_reference_results import record

IN_A_ROW = 3  # lines of an answer that may not stand anywhere in the kit


def texts(path: Path) -> list[str]:
    """What people read in a file: of a notebook, its cells."""
    if path.suffix == ".ipynb":
        return [cell.source for cell in nbformat.read(path, as_version=4).cells]
    try:
        return [path.read_text(encoding="utf-8")]
    except UnicodeDecodeError:
        return []


def runs_of_lines(text: str) -> set[tuple[str, ...]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {tuple(lines[i : i + IN_A_ROW]) for i in range(len(lines) - IN_A_ROW + 1)}


@cache
def lines_of_answers() -> dict[tuple[str, ...], str]:
    """Lines in a row of all solutions and samples that neither the library nor the released labs have."""
    shown: set[tuple[str, ...]] = set()
    for path in files_of_students(ROOT):
        if path.relative_to(ROOT).parts[0] in ("lib", "labs"):
            shown = shown.union(*map(runs_of_lines, texts(path)))
    found = {}
    for lab in LABS:
        for sample in samples(lab):
            for cell in sample.notebook().cells:
                if cell.cell_type == "code":
                    found |= dict.fromkeys(runs_of_lines(cell.source) - shown, f"{lab}: {sample.name}")
    return found


def leaks(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (lines_of_answers()[run], run)
        for text in texts(path)
        for run in runs_of_lines(text)
        if run in lines_of_answers()
    ]


def test_no_part_of_an_answer_is_in_the_kit():
    assert len(lines_of_answers()) > 1000
    found = {str(path.relative_to(ROOT)): leaks(path) for path in files_of_students(ROOT)}
    assert {path: runs for path, runs in found.items() if runs} == {}


def test_no_sentence_of_a_model_argument_or_a_rubric_is_in_the_kit():
    private = [file.read_text() for file in (ROOT / "solutions").glob("*/rubric.md")]
    assert len(private) == len(LABS)
    for lab in LABS:
        private += [cell.source for cell in read_lab("solutions", lab).cells if is_written(cell)]
    long = {
        s.strip() for text in private for s in re.split(r"[.\n|]", text.replace("###", "\n")) if len(s.strip()) > 60
    }
    released = "\n".join(c.source for lab in LABS for c in read_lab("labs", lab).cells)
    told = {sentence for sentence in long if sentence in released}  # a rubric may quote the question
    assert len(long) > 20 * len(told)
    for path in files_of_students(ROOT):
        for text in texts(path):
            assert not [sentence for sentence in long - told if sentence in text], path


def test_a_part_of_an_answer_would_be_found(tmp_path):
    for lab in LABS:
        right = next(s for s in samples(lab) if s.name == "right")
        for name in ("leak.py", "leak.md"):
            (tmp_path / name).write_text("\n\n".join(c.source for c in right.notebook().cells if c.cell_type == "code"))
            assert leaks(tmp_path / name), lab


def test_students_get_the_course_and_nothing_of_the_graders():
    given = {str(path.relative_to(ROOT)) for path in files_of_students(ROOT)}
    for needed in ("course/06a_fsdp.ipynb", "labs/lab2_ddp/lab2_ddp.ipynb", "lib/shardlab/__init__.py", "LICENSE"):
        assert needed in given
    for part in ("solutions", "samples", "references", "attacks", "tests", "bench", "gradebook", "reports", "kit"):
        assert not [path for path in given if part in Path(path).parts], part
    assert not [path for path in given if "rule_coverage" in path or "nbgrader_config" in path]


def test_what_git_does_not_have_is_not_given_away(tmp_path):
    private = ROOT / "course" / "notes of an instructor.md"
    private.write_text("the answers\n")
    try:
        assert private not in list(files_of_students(ROOT))
    finally:
        private.unlink()


def test_a_kit_overwrites_nothing_and_needs_a_release(tmp_path):
    (tmp_path / "mine").write_text("words")
    with pytest.raises(KitError, match="not empty: name a new folder"):
        make_kit(tmp_path, [1])
    for lab in ("lab1_memory", "lab2_ddp"):
        (tmp_path / "course" / "solutions" / lab).mkdir(parents=True)
    with pytest.raises(KitError, match=r"not released yet: lab1_memory, lab2_ddp\. Call `shardlab release`"):
        make_kit(tmp_path / "new", [1], root=tmp_path / "course")
    assert [path.name for path in tmp_path.iterdir() if path.name != "course"] == ["mine"]


def test_the_kits_project_file_has_no_settings_of_our_tools():
    text = make._pyproject((ROOT / "pyproject.toml").read_text())
    assert "[project]" in text and "recorded/*.json.xz" in text
    assert not any(tool in text for tool in ("pytest.ini_options", "importlinter", "tool.ruff", "tool.mypy"))


# What was recorded


def recorded(lab: str, seeds: list[int], folder: Path, monkeypatch) -> RecordedAnswers:
    """What a student's `check` asks, without what ranks reply."""
    monkeypatch.setattr("grading.student_kit.record_reference_results._of_ranks", lambda *_: ({}, {}))
    record(lab, seeds, folder, show=lambda words: None)
    return RecordedAnswers(**json.loads(lzma.decompress((folder / f"{lab}.json.xz").read_bytes())))


ARITHMETIC = {
    "lab2_ddp": ("lab2.plan",),
    "lab4_fsdp": ("lab4.price", "lab4.efficiency"),
    "lab5_precision_recompute": ("lab5.plan",),
    "lab6_profile": ("lab6.shares", "lab6.hidden"),
}


SLOW = ("lab2_ddp", "lab5_precision_recompute")  # some samples compute until they are stopped


@pytest.mark.parametrize("lab", [pytest.param(lab, marks=[pytest.mark.night] * (lab in SLOW)) for lab in ARITHMETIC])
def test_at_home_the_same_points_for_the_same_cause(lab, tmp_path, monkeypatch, answers, unboxed):
    """Of samples that are right, or that one of these checks stops: the verdict where our answers are, and at home."""
    seeds = [11, 12]
    homes = answers_for(lab)[0], recorded(lab, seeds, tmp_path, monkeypatch)
    for ours in homes:
        monkeypatch.setattr(ours, "draw_seed", lambda: seeds[0])
    concerned = [s for s in samples(lab) if not s.blank and (not s.points or set(s.points) & set(ARITHMETIC[lab]))]
    for sample in concerned[:: max(1, len(concerned) // 8)]:
        handed_in, verdicts = answers(sample), []
        for check in ARITHMETIC[lab]:
            for ours in homes:
                referee = unboxed(lab)
                monkeypatch.setattr(referee, "_ours", ours)
                verdicts.append(referee.judge(handed_in, only=check)[0])
            graded, told = verdicts[-2:]
            assert (told.points, told.cause) == (graded.points, graded.cause), (sample.name, check)


def test_a_draw_that_was_not_recorded_is_no_fail(tmp_path, monkeypatch, answers, unboxed):
    nothing = RecordedAnswers([5], {}, {}, {})
    right = next(s for s in samples("lab2_ddp") if s.name == "right")
    referee = unboxed("lab2_ddp")
    monkeypatch.setattr(referee, "_ours", nothing)
    verdict = referee.judge(answers(right), only="lab2.plan")[0]
    assert verdict.inconclusive and "no fault of yours" in verdict.cause
    with pytest.raises(NotRecorded):
        nothing.solve("earliest_finish", {})


def test_a_home_draws_only_what_it_has_and_asks_no_ranks_for_what_it_knows():
    at_home = RecordedAnswers([5, 7], {}, {key_of("line", {"a": 1}): [{"link_bytes": 3}]}, {key_of("laps", {}): 0.5})
    assert {at_home.draw_seed() for _ in range(50)} == {5, 7}
    assert at_home.replies("line", {"a": 1}) == [{"link_bytes": 3}] and at_home.replies("line", {"a": 2}) is None
    assert (at_home.pace("laps", {}), at_home.pace("laps", {"a": 1})) == (0.5, 1.0)
    assert OurAnswers(None).replies("line", {"a": 1}) is None and OurAnswers(None).pace("laps", {}) == 1.0


def test_without_references_and_records_there_is_nothing_to_ask(monkeypatch, tmp_path):
    monkeypatch.setattr(reference_lookup.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(reference_lookup, "RECORDED", tmp_path)
    assert answers_for("lab3_zero")[1] is None


# The whole kit


@pytest.mark.night
@pytest.mark.timeout(1800)  # it makes a kit, and grades a solution of every lab
def test_a_kit_is_whole_and_the_solutions_pass_there(tmp_path):
    """One test, since it takes minutes to make a kit: a repository, a wheel, pages, and `check` on every lab."""
    kit = tmp_path / "shardlab"
    make_kit(kit, [21], show=print)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=kit, capture_output=True, text=True, check=True)
    assert log.stdout.splitlines() == ["The course, as released"]
    status = subprocess.run(["git", "status", "--short", "--ignored"], cwd=kit, capture_output=True, text=True)
    assert status.stdout.split() in ([], ["!!", "dist/"])
    assert broken_links(kit) == []
    (wheel,) = (kit / "dist").glob("shardlab-*.whl")
    with ZipFile(wheel) as files:
        names = files.namelist()
    assert "grading/recorded/lab8_capstone.json.xz" in names
    assert not [name for name in names if name.startswith("grading/references")]
    for lab in LABS:
        assert lab_module(lab).__name__.replace(".", "/") + ".py" in names
        assert failed_at_home(kit, lab) == "", lab


def broken_links(kit: Path) -> list[tuple[str, str]]:
    pages = [kit / folder / "README.md" for folder in ("", "course", "labs", "lib")]
    links = ((page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()))
    return [(str(page), link) for page, link in links if not (page.parent / link).exists()]


def failed_at_home(kit: Path, lab: str) -> str:
    """Return what `check` says of the solution where it is not right, in a process that has nothing but the kit."""
    source = f"""if True:
        import base64, json, sys
        from grading.judge.judge_answers import Referee
        import grading
        assert grading.__file__.startswith({str(kit)!r})
        answers = {{name: base64.b64decode(text) for name, text in json.load(sys.stdin).items()}}
        with Referee({lab!r}, "cpu", same_player=True) as referee:
            for first in referee.judge(answers):
                verdicts = [first]  # what noise hid is asked again, as a student would
                while verdicts[-1].inconclusive and len(verdicts) < 4:
                    verdicts += referee.judge(answers, only=first.check)
                if not verdicts[-1].passed:
                    print(verdicts[-1].text())
        """
    right = next(s for s in samples(lab) if s.name == "right")
    text = json.dumps({name: base64.b64encode(answer).decode() for name, answer in handed_in(right).items()})
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{kit / 'lib'}:{kit}", "HOME": str(kit.parent)}
    command = [sys.executable, "-P", "-c", source]
    done = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, timeout=deadline_s(400), check=False
    )
    return (done.stdout + done.stderr * bool(done.returncode)).strip()


def test_the_referee_of_a_home_needs_no_answer_of_ours(monkeypatch):
    """Its launcher for the reference gets the drills alone."""
    seen = []
    monkeypatch.setattr("grading.judge.judge_answers.answers_for", lambda lab: (OurAnswers(None), None))
    monkeypatch.setattr("grading.judge.judge_answers.RankLauncher", lambda *modules, **_: seen.append(modules))
    Referee("lab6_profile", "cpu", same_player=True)
    assert seen == [(lab_module("lab6_profile").DRILLS,)]
