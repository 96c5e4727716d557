"""The README's commands do what it says: each is executed here, in a copy of the course, or is a part of .ci/run.

Behind a command in a block stands what it prints, or a comment on what it makes; both are held against what happens.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from course_copy import ROOT, copy_course, files
from deadlines import deadline_s
from test_setup import ci_targets
from web import page

from grading.samples.sample import samples

README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
STARTS = ("make ", ".venv/bin/", "shardlab ", "conda ")
NOT_HERE = {  # there is no conda: what environment.yml asks for is looked at in test_setup
    "conda env create -f environment.yml",
    "conda activate shardlab",
}


def commands(markdown: str) -> list[str]:
    """Of blocks that name no language: without prompts and comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", markdown, flags=re.DOTALL | re.MULTILINE)
    text = "".join(block for language, block in blocks if not language)
    lines = [line.removeprefix("$ ").split("  #")[0].rstrip() for line in text.splitlines()]
    return [line for line in lines if line.startswith(STARTS)]


class Course:
    """What git has of the course, elsewhere, and commands there as somebody types them who has set it up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_course(folder)
        (folder / ".venv").mkdir()
        for part in Path(sys.prefix).iterdir():
            (folder / ".venv" / part.name).symlink_to(part)
        marker = folder / ".venv" / ".installed"  # newer than what it is made from: make leaves the set-up as it is
        marker.unlink(missing_ok=True)
        marker.touch()
        (folder / "jupyter_server_config.py").write_text("c.ServerApp.allow_root = True\nc.ServerApp.port = 0\n")
        paths = {"PYTHONPATH": f"{folder}/lib:{folder}", "JUPYTER_CONFIG_DIR": str(folder), "COLUMNS": "120"}
        self.environment = os.environ | paths | {"BROWSER": "true"}

    def start(self, command: str) -> psutil.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return psutil.Popen(command, shell=True, cwd=self.folder, env=self.environment, start_new_session=True, **pipes)

    def run(self, command: str, within_s: float = 380) -> str:
        process = self.start(command)
        output, _ = process.communicate(timeout=deadline_s(within_s))
        assert process.returncode == 0, output
        return output


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    return Course(tmp_path_factory.mktemp("a copy"))


TRIED: set[str] = set()


def tried(*commands: str):
    """Marks the test that executes them, and gives them to it."""
    TRIED.update(commands)
    return pytest.mark.parametrize("typed", [commands], ids=[" ".join(commands[0].split()[:2])])


PLAN = ".venv/bin/shardlab plan"


@tried(
    f"{PLAN} llama-3.1-8b --machine H100 --gpus 8 --seq-len 8192 --tokens 1e12",
    f"{PLAN} llama-3.1-8b --machine H100 --gpus 8 --recompute full --measured tokens_per_s=4100 memory=31GiB",
    f"{PLAN} --script train.py:build --batch 8x1024 --wrap Block --machine 4090 --gpus 4",
)
def test_a_plan_prints_what_the_readme_shows(course, typed):
    (course.folder / "train.py").write_text(re.search(r"```python\n(# train.py\n.*?)```", README, flags=re.DOTALL)[1])
    for command in typed:
        shown = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)[1]
        printed = [line.rstrip() for line in course.run(f"COLUMNS=80 {command}").splitlines()]
        assert [line for line in shown.splitlines() if line != "..." and line not in printed] == [], command


@pytest.mark.night
@tried(".venv/bin/shardlab run course/00_start_here.ipynb --tier cpu -p seed 1 --junit build/report.xml")
def test_a_lesson_is_run_and_reported(course, typed):
    """By day test_run_command runs a small notebook with these options, and CI some lessons."""
    course.run(typed[0])
    assert 'tests="1"' in (course.folder / "build" / "report.xml").read_text()


HANDED_IN = {  # a sample: who hands it in, its points, what the feedback says; who is wrong is soon through the race
    "forgets_to_average": ("ada", "9/15", "never divided"),
    "right": ("grace", "15/15", "as fast as torch's DDP"),
}


@pytest.mark.night
@pytest.mark.parametrize("name", ["forgets_to_average", "right"])
@tried("make release LAB=lab2_ddp", "make grade LAB=lab2_ddp", "make feedback LAB=lab2_ddp")
def test_a_lab_goes_from_release_to_feedback(course, typed, name):
    release, grade, feedback = typed
    student, points, cause = HANDED_IN[name]
    released = course.folder / "labs" / "lab2_ddp" / "lab2_ddp.ipynb"
    committed = released.read_bytes()
    released.unlink()
    course.run(release)
    assert released.read_bytes() == committed
    handed_in = course.folder / "grading" / "submitted" / student / "lab2_ddp" / "lab2_ddp.ipynb"
    handed_in.parent.mkdir(parents=True)
    sample = next(s for s in samples("lab2_ddp") if s.name == name)
    handed_in.write_text(nbformat.writes(sample.notebook()))
    assert re.search(rf"{student} .* {points} ", course.run(grade))
    course.run(feedback)
    said = (course.folder / "grading" / "feedback" / student / "lab2_ddp" / "lab2_ddp.html").read_text()
    assert cause in said


@pytest.mark.night
@tried(".venv/bin/shardlab kit --out ../for-students")
def test_students_get_a_kit(course, typed):
    """By day test_kit looks at what goes into it, and at night at one with a single draw."""
    course.run(typed[0], within_s=1200)
    kit = course.folder.parent / "for-students"
    assert (kit / ".git").is_dir() and not (kit / "solutions").exists()


@tried("make lab")
def test_jupyterlab_opens_on_the_first_lesson(course, typed):
    server = course.start(typed[0])
    try:
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://localhost\S+", line)))
        assert "/lab/tree/course/00_start_here.ipynb" in address
        assert "<title>JupyterLab</title>" in page(address)
    finally:
        for process in [*server.children(recursive=True), server]:
            process.kill()
        server.wait()


@pytest.mark.night
@tried("shardlab doctor && shardlab run")
def test_on_a_gpu_node_the_doctor_comes_first(course, typed):
    """By day test_cli asks it. The lessons behind it are what `make lessons` runs, in CI."""
    doctor, lessons = typed[0].split(" && ")
    assert lessons in (ROOT / "Makefile").read_text()
    course.run(f".venv/bin/{doctor}")


@tried("make course")
def test_all_lessons_are_run_as_ci_runs_a_part_of_them(typed):
    """CI leaves some out, and says so at the end of the same command."""
    assert "lessons" in ci_targets((ROOT / ".ci" / "run").read_text())
    whole, part = (re.search(rf"^{target}:.*\n\t(.*)$", MAKEFILE, re.M)[1] for target in ("course", "lessons"))
    assert whole == "$(BIN)/shardlab run course/*.ipynb"
    assert part.startswith(f"{whole} --since ")


def test_every_command_is_executed():
    in_ci = {f"make {target}" for target in ci_targets((ROOT / ".ci" / "run").read_text())}
    assert set(commands(README)) - TRIED - in_ci == NOT_HERE
    assert set(commands(README)) >= TRIED


def test_commands_are_found_in_blocks():
    text = "`make nothing`\n```\n$ make demo   # make it\nmake grade LAB=x  # so\nprinted\n```\n"
    text += "```python\nmake (it)\n```\nmake that\n"
    assert commands(text) == ["make demo", "make grade LAB=x"]


@pytest.mark.parametrize("name", [name for name in files() if name.endswith(".md") and "kit/files/" not in name])
def test_links_lead_somewhere(name):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / name).read_text())
    # the book's first page is copied to the top of its pages, where the course and its picture are
    places = [ROOT, ROOT / "lib" / "pictures"] if "/site/" in name else [(ROOT / name).parent]
    assert [target for target in targets if not any((place / target).exists() for place in places)] == []
