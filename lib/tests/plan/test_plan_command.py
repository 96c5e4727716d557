"""`shardlab plan` as a user types it: tables in 80 columns, JSON, and one line for what is wrong."""

import json
import re
import subprocess
import sys
from dataclasses import fields

import pytest
import typer
from deadlines import deadline_s
from typer.testing import CliRunner

from shardplan.api import plan
from shardplan.command import plan_command
from shardplan.command_options import HELP, PlanCommand
from shardplan.strategy import Strategy

app = typer.Typer()
app.command("plan", cls=PlanCommand)(plan_command)
app.command("other")(lambda: None)
NARROW = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})


def run(*words: str):
    return NARROW.invoke(app, ["plan", *map(str, words)])


def test_every_field_of_a_strategy_is_an_option():
    assert set(HELP) == {f.name for f in fields(Strategy)}
    text = run("--help").output
    for name in HELP:
        assert f"-{name.replace('_', '-')}" in text
    assert all(HELP.values())


def test_a_plan_can_be_read_on_80_columns():
    result = run("8B", "--gpus", 64, "--seq-len", 8192, "--recompute", "selective", "--tokens", "15e12")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    same = plan("8B", "dgx-h100", 64, seq_len=8192, recompute="selective")
    joined = " ".join(result.output.split())
    for words in (
        "8B, 8,030,261,248 parameters, on 64 GPUs",
        "optimizer states",
        "reserved by the allocator",
        "nvidia-smi",
        f"{same.memory.peak.name}, the peak",
        f"{same.speed.tokens_per_s:,.0f} tokens/s",
        f"MFU {same.speed.mfu:.1%}",
        "between nodes",
        "GPU hours",
        same.bottleneck,
        *same.options,
        f"{same.job_tokens_per_s:,.0f} tokens/s; global batch 64 sequences, 524,288 tokens",
        "Allocated: by tensors. Reserved: what PyTorch holds",
        "all_gather of blocks, backward",
    ):
        assert words in joined


def test_options_reach_the_strategy(tmp_path):
    file = tmp_path / "plan.json"
    choices = ["--sharding", "DDP", "--gradient-as-bucket-view", "--bucket-cap-mb", "5.5", "--no-sequence-parallel"]
    assert run("1B", "--machine", "dgx-a100", *choices, "--json", file).exit_code == 0
    said = json.loads(file.read_text())
    assert said["strategy"]["sharding"] == "DDP" and said["strategy"]["bucket_cap_mb"] == 5.5
    assert said["strategy"]["gradient_as_bucket_view"] and not said["strategy"]["sequence_parallel"]
    assert said["world_size"] == 8, "a node's"


def test_json_alone_is_on_the_terminal_when_it_is_asked_for():
    result = run("1B", "--json", "-")
    said = json.loads(result.stdout)
    assert said == json.loads(json.dumps(plan("1B", "dgx-h100", 8).as_json()))


def test_a_search_shows_the_best_and_what_they_cost():
    result = run("8B", "--gpus", 16, "--search", "--best", 3, "--seq-len", 8192, "--tokens", "1e12",
                 "--dollars-per-gpu-hour", 2.5, "--tensor", 1, "--pipeline", 1, "--context", 1)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "dollars" in result.output and "tokens/s/GPU" in result.output
    table, faster, full = re.split("Faster still|The fastest of the search", result.output)
    assert [part.count("seq_len=8192") for part in (table, full)] == [3, 1], "three, and the first again in full"
    assert faster.count("seq_len=8192") >= 1


def test_a_budget_in_dollars_becomes_gpus():
    result = run("1B", "--search", "--dollars-per-hour", 70, "--dollars-per-gpu-hour", 2.5, "--json", "-",
                 "--tensor", 1, "--pipeline", 1, "--context", 1)  # fmt: skip
    assert {p["world_size"] for p in json.loads(result.stdout)["best"]} == {24}


def test_terms_of_the_peak_are_told_on_demand():
    few, many = run("8B").output, run("8B", "--terms").output
    assert len(many) > len(few) and "what is live" in many


WRONG = {
    "a typo in the model": (["8C"], "8B"),
    "a file that is not there": (["no/such/config.json"], "config.json"),
    "a typo in the machine": (["8B", "--machine", "dgx-h10"], "dgx-h100"),
    "no GPUs": (["8B", "--gpus", "0"], "gpus=0"),
    "fewer than none": (["8B", "--gpus", "-8"], "gpus=-8"),
    "a typo in a value": (["8B", "--sharding", "FULL_SHRD"], "FULL_SHARD"),
    "a micro-batch of none": (["8B", "--micro-batch", "0"], "micro_batch=0"),
    "tensor does not divide the heads": (["8B", "--gpus", "6", "--tensor", "3"], "tensor=3"),
    "more stages than layers": (["8B", "--gpus", "64", "--pipeline", "64"], "pipeline=64"),
    "no tokens": (["8B", "--tokens", "0"], "tokens=0"),
    "a budget without a search": (["8B", "--dollars-per-hour", "20"], "--search"),
    "a budget without a price": (["8B", "--search", "--dollars-per-hour", "20"], "dollars_per_gpu_hour"),
    "two budgets": (["8B", "--search", "--gpus", "8", "--dollars-per-hour", "20"], "gpus"),
    "a file that can't be written": (["8B", "--json", "/no/such/folder/plan.json"], "/no/such/folder"),
    "nothing fits": (["405B", "--gpus", "8", "--search", "--offload", "none"], "gpus=8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_and_exit_code_2(name):
    words, named = WRONG[name]
    result = run(*words)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("shardlab plan: ") and named in line
    assert not isinstance(result.exception, ValueError)


def test_a_field_of_a_config_that_is_ignored_is_one_line_and_the_plan_is_made(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "conv_width": 3}))
    result = run(tmp_path)
    assert result.exit_code == 0 and "124,439,808 parameters" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("shardlab plan: warning: model=") and "conv_width=3" in line


@pytest.mark.parametrize(
    "words", [["8B", "--micro-batch", "two"], ["8B", "--shading", "DDP"], [], ["8B", "--best", "0"]]
)
def test_what_typer_does_not_take_is_no_traceback_either(words):
    result = run(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output + result.stderr


@pytest.mark.night
def test_the_command_from_a_shell():
    command = [sys.executable, "-m", "shardcourse.cli.app", "plan", "8B", "--gpus", "8", "--sharding", "DDP"]
    shell = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s(120))
    assert shell.returncode == 0, shell.stderr
    assert "does not fit" in shell.stdout and "Traceback" not in shell.stderr
    wrong = subprocess.run([*command, "--tensor", "5"], capture_output=True, text=True, timeout=deadline_s(120))
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1 and "tensor=5" in wrong.stderr
