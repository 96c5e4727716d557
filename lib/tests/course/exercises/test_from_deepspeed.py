"""The exercise of lesson 14b: the folded answer passes, its fields can be planned, and wrong ones are told why."""

import pytest
from lesson_answers import answer, defined

from shardcourse.exercises.from_deepspeed import _CASES, verdict
from shardplan.api import setup_of

RIGHT = answer("14b_other_systems.ipynb", "def translate")
NAMES = {"BATCH_NUMBERS": ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
WRONG = {  # what is altered, by what -> what the reader is told
    ('zero.get("stage", 0)', 'zero["stage"]'): "no zero_optimization at all: it stops with KeyError",
    ('"ZERO_1", "ZERO_2"', '"ZERO_2", "ZERO_1"'): "stage 1: sharding='ZERO_2', expected 'ZERO_1'",
    ('config.get("bf16", {}).get("enabled")', '"bf16" in config'): "bf16 that is not enabled",
    ('.get("device", "none")', '.get("where", "none")'): "the optimizer on the host: offload='none', expected 'cpu'",
    ("whole // gpus // (steps or 1)", "whole // gpus"): "train_batch_size and accumulation",
    ("whole // gpus // micro if whole else 1", "1"): "train_batch_size and micro-batch: it raises ValueError",
    ("if whole is not None and", "if False and"): "three numbers that do not agree: it returns",
    ('        "accumulation": steps,\n', ""): "accumulation=None, expected 1",
    ("    return {", "    return 1, {"): "not a dict of the fields",
}


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(old, new):
    assert old in RIGHT
    assert WRONG[old, new] in verdict(defined(RIGHT.replace(old, new), "translate", **NAMES))


def test_the_right_answer_passes():
    assert verdict(defined(RIGHT, "translate", **NAMES)).startswith("Right")


@pytest.mark.parametrize("name", [name for name, (_, fields) in _CASES.items() if fields])
def test_its_fields_are_the_planners(name):
    assert setup_of("8B", "dgx-h100", 8, **_CASES[name][1]).strategy.seq_len == 2048
