"""The command line says what it can do, and what is wrong in the user's words."""

import io
import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from rich.console import Console
from typer.testing import CliRunner

from shardcourse.claims import claims
from shardcourse.claims.table import claims_table
from shardcourse.cli import doctor
from shardcourse.cli.app import app
from shardcourse.lessons import changed, folders

shell = CliRunner()


def test_every_command_explains_itself():
    listed = shell.invoke(app, ["--help"]).output
    for name in ("demo", "doctor", "run", "release", "grade", "feedback", "bench"):
        assert name in listed
        assert shell.invoke(app, [name, "--help"]).exit_code == 0


def test_doctor_reports_each_finding_with_a_remedy():
    result = shell.invoke(app, ["doctor", "--json"])
    findings = {f["what"]: f for f in json.loads(result.output)}
    assert {"Python", "torch", "cores", "memory", "tier", "4 CPU ranks"} <= set(findings)
    assert findings["4 CPU ranks"]["ok"], findings
    assert result.exit_code == (not all(f["ok"] or not f["needed"] for f in findings.values()))


def test_doctor_tells_what_is_broken_from_what_only_some_need(monkeypatch):
    """A missing box fails nobody; ranks that can't talk fail everybody, and the whole error is there to read."""
    ranks = doctor.Finding("4 CPU ranks", "started")
    monkeypatch.setattr(doctor, "_ranks", lambda: ranks)
    monkeypatch.setattr(doctor.Bubblewrap, "obstacle", lambda: "bubblewrap is not installed")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    result = shell.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert result.output.count("--") == 2 and "!!" not in result.output

    def refused(*_, **__):
        raise RuntimeError("rank 2 of 4 could not connect\nConnectionRefusedError: port 29500")

    monkeypatch.undo()
    monkeypatch.setattr(doctor, "launch", refused)
    result = shell.invoke(app, ["doctor", "--json"])
    broken = {f["what"]: f for f in json.loads(result.output)}["4 CPU ranks"]
    assert result.exit_code == 1
    assert broken["found"] == "rank 2 of 4 could not connect" and "ConnectionRefusedError" in broken["remedy"]


@pytest.mark.parametrize(
    ("tier", "why"), [("gpu8", "needs a GPU"), ("huge", "no tier 'huge'"), ("error", "the driver is too old")]
)
def test_doctor_goes_on_where_a_tier_can_not_be_had(tier, why, monkeypatch):
    """Asked for without what it needs, unknown, or because torch can't ask the driver."""

    def too_old():
        raise RuntimeError("the driver is too old")

    monkeypatch.setenv("SHARDLAB_TIER", tier)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if tier == "error":
        monkeypatch.setattr(doctor, "detect", too_old)
    finding = doctor._tier()
    assert not finding.ok and "SHARDLAB_TIER" in finding.remedy and why in finding.found


def test_an_unknown_lab_is_told_those_there_are():
    result = shell.invoke(app, ["grade", "lab99"])
    assert result.exit_code != 0
    assert "lab2_ddp" in str(result.exception) + result.output


def test_one_bad_notebook_does_not_keep_the_others_from_running(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "ROOT", tmp_path)
    monkeypatch.setattr(changed, "DATA", [])
    (tmp_path / "bad.ipynb").write_text("not a notebook")
    nbformat.write(new_notebook(cells=[new_code_cell("1")]), tmp_path / "good.ipynb")
    names = [str(tmp_path / f"{name}.ipynb") for name in ("bad", "missing", "good")]
    assert "1 passed, 2 failed" in shell.invoke(app, ["run", *names]).output


@pytest.mark.parametrize("source, outcome", [("print(tier)", "1 passed, 0 failed"), ("1 / 0", "ZeroDivisionError")])
def test_run_executes_a_notebook_and_names_the_error(source, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "ROOT", tmp_path)
    monkeypatch.setattr(changed, "DATA", [])
    parameters = new_code_cell("tier = None", metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[parameters, new_code_cell(source)]), tmp_path / "lesson.ipynb")
    result = shell.invoke(app, ["run", str(tmp_path / "lesson.ipynb"), "--tier", "cpu"])
    assert outcome in result.output
    assert result.exit_code == ("1 / 0" in source)
    assert (tmp_path / "build" / "run" / "lesson.ipynb").exists()


def test_a_tier_that_is_not_here_is_said_before_anything_runs():
    result = shell.invoke(app, ["run", "--tier", "gpu16"])
    assert result.exit_code == 2 and "there are cpu, cpu8, gpu1" in result.output


def test_the_version_names_what_a_report_of_a_fault_needs():
    said = shell.invoke(app, ["--version"]).output
    assert re.match(r"shardlab \d.*, torch 2\.\d+.*, nbgrader .*, jupyterlab .*, Python 3\.\d+", said)


def test_a_file_that_is_not_there_is_said_before_anything_runs(tmp_path):
    (tmp_path / "06a_fsdp.ipynb").write_text("{}")
    done = shell.invoke(app, ["run", str(tmp_path / "6_fsdp.ipynb")])
    assert done.exit_code == 2 and "did you mean 06a_fsdp.ipynb?" in done.output


def test_a_claim_that_is_nothing_like_any_id_gets_no_guess():
    done = shell.invoke(app, ["claims", "qqq"])
    assert done.exit_code == 2 and "`shardlab claims` lists all" in done.output
    near = shell.invoke(app, ["claims", "ddp-8b-128-gbs"])
    assert near.exit_code == 2 and "did you mean 'ddp-8b-128-gb'?" in near.output


@pytest.mark.parametrize("width", [80, 120])
def test_no_id_of_a_claim_is_broken(width):
    console = Console(width=width, file=io.StringIO())
    console.print(claims_table(list(claims().values()), width))
    said = console.file.getvalue()
    assert [c.id for c in claims().values() if c.id not in said] == []
    assert all(len(line) <= width for line in said.splitlines())


def test_a_commit_that_is_not_there_is_named():
    result = shell.invoke(app, ["bench", "earlier", "no-such-commit"])
    assert result.exit_code == 2
    assert "no lib at commit 'no-such-commit'" in result.stderr
    assert "git log" in result.stderr
