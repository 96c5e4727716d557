"""A model of the user's own is planned by the trace: what real ranks hold and send; and what can't be is said."""

import json
from pathlib import Path

import own_models
import pytest
import typer
from typer.testing import CliRunner

from shardlab import launch
from shardplan.command import plan_command
from shardplan.command_options import PlanCommand
from shardplan.own_model import OwnPlan, plan_model
from shardplan.trace.any_model import Input, Traced, step_of
from shardplan.trace.run import moments_of

FILE = Path(__file__).with_name("own_models.py")
CONV, EXPERTS = (f"{FILE}:conv", "4x3x32x32"), (f"{FILE}:experts", "4x64")
BY_DAY = [
    (CONV, {}),
    (EXPERTS, {"recompute": "full"}),
]
AT_NIGHT = [
    (CONV, {"sharding": "DDP"}),
    (EXPERTS, {"precision": "fp32", "accumulation": 2, "accumulate_unsharded": True}),
    (CONV, {"precision": "fp32", "sharding": "ZERO_1"}),
    (CONV, {"wrap": "whole", "optimizer": "sgd"}),
    (CONV, {"sharding": "ZERO_2"}),
    (EXPERTS, {"sharding": "SHARD_GRAD_OP", "optimizer_kernel": "fused"}),
    (CONV, {"wrap": "Stage,Conv2d"}),
    (EXPERTS, {"shard_size": 1}),
]
app = typer.Typer()
app.command("plan", cls=PlanCommand)(plan_command)
app.command("other")(lambda: None)
NARROW = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})


def measured(plan: OwnPlan, model: tuple[str, str], wrap: str) -> Traced:
    """The same step on two real ranks."""
    source, batch = model
    arguments = source, [Input.read(batch)], plan.setup, wrap, "cpu", "cpu"
    return launch(step_of, 2, *arguments, device="cpu", backend="gloo", stream=False)[0]


def compare_with_ranks(model: tuple[str, str], wrap: str = "block", **strategy) -> None:
    plan = plan_model(*model, "H100", 2, wrap=wrap, **strategy)
    real = measured(plan, model, wrap)
    for ours, theirs in zip(plan.memory.moments, moments_of(real.parts), strict=True):
        assert ours.name == theirs.name and ours.n_bytes == pytest.approx(theirs.n_bytes, rel=0.01), ours.name
    peak = max(moments_of(real.parts), key=lambda m: m.n_bytes)
    assert plan.memory.allocated_bytes == pytest.approx(peak.n_bytes, rel=0.01)
    assert plan.traced.messages == real.messages and plan.traced.flops == real.flops


@pytest.mark.parametrize(("model", "strategy"), BY_DAY, ids=str)
def test_the_peak_of_real_ranks(model, strategy):
    compare_with_ranks(model, **strategy)


@pytest.mark.night
@pytest.mark.parametrize(("model", "strategy"), AT_NIGHT, ids=str)
def test_the_peak_of_real_ranks_in_more_ways(model, strategy):
    compare_with_ranks(model, **strategy)


def test_states_and_messages_are_arithmetic():
    """Of 16 ranks each holds its padded part, in fp32, and sends 15/16 of each all_gather."""
    plan = plan_model(*CONV, "H100", 16)
    parameters = list(own_models.conv().parameters())
    part = sum(-(-p.shape[0] // 16) * (p.numel() // p.shape[0]) for p in parameters)
    held = plan.memory.moments[-1].by_category()
    assert plan.traced.n_params == sum(p.numel() for p in parameters)
    assert held["parameters"] == held["gradients"] == 4 * part
    assert held["optimizer_states"] == 2 * 4 * part + 4 * len(parameters)
    reduced = sum(send.bytes for send in plan.sends if send.kind == "reduce_scatter")
    assert reduced == pytest.approx(15 * 4 * part)
    assert plan.traced.units == {"Stage": 3} and plan.traced.loss == "its own"


def test_a_module_is_what_the_file_is():
    """Also with its numbers in memory, which do not travel; its loss is the mean of what it returns."""
    model = own_models.ExpertsNet()
    plan = plan_model(model, "4x64", "H100", 2, recompute="full")
    same = plan_model(f"{FILE}:ExpertsNet", ["4x64"], "H100", 2, recompute="full")
    assert plan.memory == same.memory and plan.traced.loss.startswith("the mean of its output")
    assert plan.traced.n_params == sum(p.numel() for p in model.parameters()), "the tied matrix counts once"


WRONG = {
    "no such file": ("nowhere.py:build", "8x64", "there is no file nowhere.py"),
    "no such name": (f"{FILE}:expert", "8x64", "did you mean .*own_models.py:experts"),
    "no name": (f"{FILE}", "8x64", "which model of .*Write .*:ConvNet or "),
    "needs arguments": (f"{FILE}:needs", "8x64", r"needs arguments: vocab_size.*return needs\(vocab_size=\.\.\.\)"),
    "makes no module": (f"{FILE}:returns_a_number", "8x64", "makes int, but it must make a torch.nn.Module"),
    "is no module": (f"{FILE}:A_NUMBER", "8x64", "is int, but it must be a torch.nn.Module"),
    "a shape of numbers": (f"{FILE}:selects", "8x64:float32", "own_models.py, line 91: aten.nonzero.*fixed shape"),
    "a branch on numbers": (f"{FILE}:branches", "8x64:float32", "line 97: aten._local_scalar_dense.*reads a number"),
    "a shape that does not fit": (f"{FILE}:wrong_shape", "8x64:float32", "a step with this batch fails: RuntimeError"),
    "no shape": (f"{FILE}:conv", "8y64", "batch='8y64' is no shape, such as 8x512"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_file_is_said(name):
    source, batch, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        plan_model(source, batch, "H100", 8)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"tensor": 2}, "tensor is a choice of the planner's own models"),
        ({"shardin": "DDP"}, "did you mean 'sharding'"),
        ({"wrap": "Expert"}, "did you mean 'Experts'"),
        ({"precision": "bf16-mixed", "sharding": "DDP"}, "trace 'bf16-autocast'"),
    ],
    ids=str,
)
def test_a_choice_that_a_file_can_t_have_is_said(choice, words):
    with pytest.raises(ValueError, match=words):
        plan_model(*EXPERTS, "H100", 8, **choice)


def test_a_file_that_trains_when_it_is_imported_is_told_how_not_to(tmp_path):
    (tmp_path / "train.py").write_text(
        "import argparse\nargparse.ArgumentParser().add_argument('lr')\nraise SystemExit\n"
    )
    with pytest.raises(ValueError, match="if __name__ == '__main__'"):
        plan_model(f"{tmp_path}/train.py:build", "8x64", "H100", 8)


def run(*words: str):
    return NARROW.invoke(app, ["plan", *map(str, words)])


def test_a_script_from_the_terminal(tmp_path):
    """Its neighbours can be imported, and what stands under __main__ does not run."""
    (tmp_path / "sizes.py").write_text("WIDTH = 32\n")
    (tmp_path / "train.py").write_text(
        "import torch.nn as nn\nfrom sizes import WIDTH\n"
        "def build():\n    return nn.Sequential(nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100))\n"
        "if __name__ == '__main__':\n    raise SystemExit('trains')\n"
    )
    file = tmp_path / "plan.json"
    words = ["--script", tmp_path / "train.py", "--batch", "8x16", "--machine", "a100-80gb", "--gpus", 4]
    result = run(*words, "--ddp", "--json", file)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    joined = " ".join(result.output.split())
    assert "6,500 parameters, on 4 GPUs of dgx-a100" in joined and "fits: " in joined
    assert "Traced with a CPU's kernels" in joined
    assert "all_reduce" in joined and "name others: --wrap" in joined
    said = json.loads(file.read_text())
    assert said["model"]["n_params"] == 6500 and said["fits"] == "yes"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--script", f"{FILE}:conv"], "--batch 8x512"),
        (["8B", "--script", f"{FILE}:conv", "--batch", "4x3x32x32"], "model is not for --script: leave it out"),
        (["--script", f"{FILE}:conv", "--batch", "4x3x32x32", "--search"], "search is not for --script"),
        (["--script", f"{FILE}:conv", "--batch", "4x3x32x32", "--gpus", "12"], "this would do: --gpus 16"),
        (["--script", f"{FILE}:conv", "--batch", "4x3x32x32", "--sharding", "zero4"], "this would do: --sharding"),
    ],
)
def test_what_is_wrong_is_one_line(words, named):
    result = run(*words)
    assert result.exit_code == 2 and named in result.stderr and len(result.stderr.splitlines()) == 1
