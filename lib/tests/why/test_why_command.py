"""`shardlab why` and `python -m shardwhy`: files, standard input, exit statuses, and no torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import deadline_s
from typer.testing import CliRunner

from shardwhy.index import load

LIB = Path(__file__).parents[2]
MESSAGE = "RuntimeError: Expected to mark a variable ready only once. This error is caused by\n"
WITHOUT_TORCH = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {"torch", "numpy", "typer", "rich", "shardlab"}:
            raise ModuleNotFoundError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def why(*arguments: str, module: str = "shardwhy", text: str = "") -> subprocess.CompletedProcess:
    """Run the command where torch and all other packages are refused."""
    command = [sys.executable, "-c", WITHOUT_TORCH, module, *arguments]
    paths = os.environ | {"PYTHONPATH": str(LIB)}
    return subprocess.run(
        command, input=text, env=paths, capture_output=True, text=True, timeout=deadline_s(20), check=False
    )


def test_a_file_of_the_message_is_known(tmp_path):
    (tmp_path / "train.log").write_text(f"[rank1]: {MESSAGE}")
    done = why(str(tmp_path / "train.log"))
    assert done.returncode == 0, done.stderr
    assert "rank 1, train.log:1" in done.stdout and "[ready_only_once]" in done.stdout
    assert len(done.stdout.splitlines()) <= 10
    assert load()["ready_only_once"].do.split(". ")[0] in done.stdout


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_read(arguments):
    done = why(*arguments, text=MESSAGE)
    assert (done.returncode, "line 1" in done.stdout) == (0, True), done.stderr


def test_several_files_and_a_folder_are_read_together(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.out").write_text("E1126 10:00:09 " + MESSAGE)
    (tmp_path / "b.out").write_text("[rank7]:E1126 10:00:03 " + MESSAGE)
    done = why(str(tmp_path / "logs"), str(tmp_path / "b.out"))
    assert "rank 7, b.out:1" in done.stdout and done.returncode == 0


def test_the_status_is_1_if_the_message_is_not_known():
    done = why(text="fatal: a message that nobody knows\n")
    assert done.returncode == 1 and done.stdout.startswith("I don't know this message.")


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        (("no_such.log",), "", "shardlab why: no_such.log: no such file or folder"),
        (("-",), "\n \n", "the input is empty"),
        (("--fast",), "", "there is no option --fast"),
    ],
)
def test_bad_input_gets_a_sentence_and_2(arguments, text, words):
    done = why(*arguments, text=text)
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr and "Traceback" not in done.stderr


def test_the_installed_command_needs_no_torch_either():
    done = why("why", module="shardcourse.cli.entry", text=MESSAGE)
    assert done.returncode == 0 and "[ready_only_once]" in done.stdout, done.stderr
    assert "shardcourse.cli.entry:main" in (LIB.parent / "pyproject.toml").read_text()


def test_the_refusal_of_torch_works():
    assert "was imported" in why("doctor", module="shardcourse.cli.entry").stderr


def test_it_is_a_command_of_the_others(tmp_path):
    from shardcourse.cli.app import app

    (tmp_path / "a.log").write_text(MESSAGE)
    done = CliRunner().invoke(app, ["why", str(tmp_path / "a.log")])
    assert done.exit_code == 0 and "[ready_only_once]" in done.output
    assert CliRunner().invoke(app, ["why", str(tmp_path / "b.log")]).exit_code == 2
    assert "why" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("module", ["shardwhy", "shardcourse.cli.entry"])
def test_a_reader_that_stops_early_sees_no_traceback(module):
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -1` does once it has its line
    arguments = ["why"] * (module != "shardwhy")
    command, paths = [sys.executable, "-m", module, *arguments], os.environ | {"PYTHONPATH": str(LIB)}
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            command, input=MESSAGE.encode(), env=paths, stdout=closed, stderr=subprocess.PIPE, timeout=deadline_s(30)
        )
    assert (done.returncode, done.stderr) == (1, b"")
