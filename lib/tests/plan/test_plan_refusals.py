"""Every refusal of `shardlab plan` names what would do, and the same command plans when that is added to it."""

import json
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from shardplan.command import plan_command
from shardplan.command_options import PlanCommand

app = typer.Typer()
app.command("plan", cls=PlanCommand)(plan_command)
app.command("other")(lambda: None)
TERMINAL = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})

# What is typed, and what would do.
ADDED = [
    ("8B --tensor 3", "--tensor 2"),  # and not 9 GPUs, which are no node
    ("8B --tp 16 --gpus 16", "--tensor 8"),
    ("8B --optimizer muon --zero1", "--sharding FULL_SHARD"),
    ("8B --optimizer muon --tp 8", "--tensor 1"),
    ("8B --optimizer muon --offload cpu", "--offload none"),
    ("8B --optimizer muon --lora-rank 8", "--optimizer adamw"),
    ("8B --optimizer muon --muon-way owners", "--muon-way one-owner"),
    ("8B --tensor 5 --gpus 1e6", "--tensor 4"),
    ("gpt2 --tp 2", "--tensor 1"),
    ("8B --tp 3 --pp 3", "--tensor 2 --gpus 6"),
    ("8B --cp 3", "--context 2"),
    ("8B --pp 64 --gpus 64", "--pipeline 32"),
    ("8B --pp 3 --gpus 16", "--pipeline 2"),
    ("8B --gpus 7 --tp 2", "--gpus 8"),
    ("8B --gpus 12", "--gpus 16"),
    ("8B --gpus 0", "--gpus 1"),
    ("8B --gpus -8", "--gpus 1"),
    ("8B --machine 4090 --gpus 64", "--gpus 8"),
    ("8B --machine 'H100-80GB x 4' --gpus 6", "--gpus 4"),
    ("8B --sharding nonee", "--sharding DDP"),  # NONE is nearer, but not for 8 GPUs
    ("8B --sharding none", "--sharding DDP"),
    ("8B --sharding fsdpp", "--sharding FULL_SHARD"),
    ("8B --sharding FULL_SHRD", "--sharding FULL_SHARD"),
    ("8B --precision fp8", "--precision bf16-mixed --products fp8 --compile"),
    ("8B --fp8", "--compile"),
    ("8B --schedule zb-h1", "--schedule 1f1b"),
    ("8B --pp 4 --schedule zb --accumulation 2", "--accumulation 4"),
    ("8B --pp 4 --schedule zb-h2 --accumulation 4", "--accumulation 7"),
    ("8B --pp 4 --schedule zb-h1 --accumulation 4 --virtual-stages 2", "--virtual-stages 1"),
    ("8B --pp 4 --schedule DualPipe --accumulation 8", "--schedule zb-h1"),
    ("8B --async-tp", "--no-async-tensor"),
    ("8B --activation-offload --offload cpu", "--no-offload-activations"),
    ("8B --nvfp4 --compile --machine B200", "--products mxfp8"),
    ("8B --mxfp8 --compile", "--products fp8"),
    ("8B --machine A100-80GB --float8 --compile", "--products compute"),
    ("8B --fp8 --compile --fp8-gather --ddp", "--gather compute"),
    ("8B --fp8 --compile --gather rowwise", "--gather fp8"),
    ("8B --products rowwise --compile --fp8-gather", "--gather compute"),
    ("8B --precision nvfp4", "--precision bf16-mixed"),
    ("8B --optimizer adamw8bits", "--optimizer adamw-8bit"),
    ("8B --recompute selectiv", "--recompute selective"),
    ("8B --micro-batch 0", "--micro-batch 1"),
    ("8B --accumulation -1", "--accumulation 1"),
    ("8B --seq-len 1001 --tp 8", "--seq-len 1000"),
    ("gpt2 --seq-len 4096", "--seq-len 1024"),
    ("gpt2 --seq-len 4096 --tp 2", "--tensor 1 --seq-len 1024"),
    ("8B --shard-size 3", "--shard-size 2"),
    ("8B --shard-size 16", "--shard-size 8"),
    ("8B --zero 2 --shard-size 4", "--shard-size all"),
    ("8B --virtual-stages 2", "--virtual-stages 1"),
    ("8B --lora-rank 5000", "--lora-rank 1023"),
    ("8B --base-4bit", "--no-base-4bit"),
    ("8B --ddp --offload cpu", "--offload none"),
    ("8B --zero 2 --offload nvme", "--offload cpu"),
    ("8B --machine gcp-a2 --offload nvme", "--offload cpu"),
    ("8B --recompute-every 2", "--recompute-every 1"),
    ("8B --cp 2 --attention math", "--attention flash"),
    ("8B --bucket-cap-mb 0", "--bucket-cap-mb 25.0"),
    ("405B --search --offload none --tp 1 --pp 1 --precision bf16", "--gpus 256"),
    ("1B --search --gpus 16 --global-batch 3 --tp 1 --pp 1 --ddp --micro-batch 1", "--global-batch 16"),
]
# What is typed, what is said, and the command that follows from it.
REPLACED = [
    ("llama-3.1-8c", "'llama-3.1-8b'", "llama-3.1-8b"),
    ("mistral-7b-v0.2", "'mistral-7b-v0.3'", "mistral-7b-v0.3"),
    ("", "shardlab plan llama-3.1-8b --machine H100 --gpus 8", "llama-3.1-8b --machine H100 --gpus 8"),
    ("1B --machine dgx-h10", "'dgx-h100'", "1B --machine dgx-h100"),
    ("1B --machine L40", "'L40S'", "1B --machine L40S"),
    ("1B --machine 4090 --gpus 64", "'RTX-4090 x 8, 100 Gb/s'", "1B --machine 'RTX-4090 x 8, 100 Gb/s' --gpus 64"),
    ("1B --tokens 0", "such as 1e12", "1B --tokens 1e12"),
    (
        "1B --dollars-per-hour 20",
        "add --search",
        "1B --search --ddp --tp 1 --pp 1 --dollars-per-hour 20 --dollars-per-gpu-hour 2.5",
    ),
    ("1B --global-batch 8", "add --search", "1B --search --ddp --tp 1 --pp 1 --global-batch 8"),
    ("1B --measured token_per_s=9", "'tokens_per_s'", "1B --measured tokens_per_s=9000"),
    ("1B --measured memory=much", "'memory=61GiB'", "1B --measured memory=61GiB"),
    ("1B --measured tokens_per_s=4e5", "job_tokens_per_s=400000", "1B --measured job_tokens_per_s=400000"),
    ("1B --search --measured memory=9", "leave out --search", "1B --measured memory=9"),
    ("1B --batch 8x512", "--script", "1B"),
]


def run(typed: str):
    return TERMINAL.invoke(app, ["plan", *shlex.split(typed)])


def refused(typed: str) -> str:
    result = run(typed)
    assert result.exit_code == 2 and "Traceback" not in result.stderr, result.output
    (line,) = [line for line in result.stderr.splitlines() if "warning" not in line]
    assert line.startswith("shardlab plan: ")
    return line


def by_day(cases: list) -> list:
    """Every third; the night has all."""
    return [case if i % 3 == 0 else pytest.param(*case, marks=pytest.mark.night) for i, case in enumerate(cases)]


@pytest.mark.parametrize(("typed", "added"), by_day(ADDED), ids=lambda words: words[:60])
def test_what_would_do_is_said_and_does(typed, added):
    said = re.search(r"this would do: (.*)$", refused(typed))
    assert said and said[1] == added
    again = run(f"{typed} {said[1]}")
    assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(("typed", "named", "instead"), by_day(REPLACED), ids=lambda words: words[:60])
def test_what_is_named_instead_does(typed, named, instead):
    assert named in refused(typed)
    again = run(instead)
    assert again.exit_code == 0, again.stderr


def test_a_refusal_says_why():
    assert "it must divide the 32 heads of 8B" in refused("8B --tensor 3")
    assert "a node of dgx-h100 has 8 GPUs" in refused("8B --gpus 12")
    assert "stay in 16 or 32 bits" in refused("8B --precision fp8")
    assert "can't be planned yet" in refused("8B --precision nvfp4")


ADVISED = [
    "8B --seq-len 8192",
    "8B --ddp",
    "70B --recompute full",
    "1B --gpus 64 --seq-len 512 --accumulation 4 --hsdp",
]


@pytest.mark.parametrize("typed", [ADVISED[0], *(pytest.param(one, marks=pytest.mark.night) for one in ADVISED[1:])])
def test_advice_is_options_that_do_what_they_promise(typed):
    before = json.loads(run(f"{typed} --json -").stdout)
    assert before["options"]
    for advice in before["options"]:
        options, promise = re.fullmatch(r"([^:(]+)(?: \(.*\))?: (.*)", advice).groups()
        after = json.loads(run(f"{typed} {options} --json -").stdout)
        held = float(promise.removeprefix("fits, ").split(" of ")[0])
        assert after["fits"] == "yes" and after["memory"]["device_bytes"][1] / 2**30 == pytest.approx(held, rel=0.005)


def test_an_option_that_is_not_known_is_answered_with_one_that_is():
    result = run("8B --shading DDP")
    assert result.exit_code == 2 and "--sharding" in result.stderr
