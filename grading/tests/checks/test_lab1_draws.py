"""Lab 1's draws: each input that a prediction depends on decides, and a mistake costs the same on every draw."""

import random
from dataclasses import replace

import pytest

from grading.checks.lab1_memory import draw, judge_counts
from grading.checks.lab1_memory.judge_predictions import TOLERANCES
from grading.checks.lab1_memory.programs import Setup
from grading.references.lab1_memory import weighted_memory_formulas
from grading.references.lab1_memory.weighted_memory_formulas import Weights
from grading.samples import rule_coverage
from grading.samples.sample import Sample, samples
from grading.samples.trial import run_cells

LAB = "lab1_memory"
RESIDENT_POINTS = 1
POINTS = {"one_rank": 3, "ddp": 2, "zero1": 2, "fsdp": 3, "fsdp_bf16": 3}
SIZES = {  # a change of one input; all but the last four hold for every program
    "V": lambda s: replace(s, V=2 * s.V),
    "D": lambda s: replace(s, D=2 * s.D, E=2 * s.E),
    "L": lambda s: replace(s, L=s.L + 1),
    "H": lambda s: replace(s, H=2 * s.H, E=s.E // 2),
    "K": lambda s: replace(s, K=2 * s.K),
    "F": lambda s: replace(s, F=2 * s.F),
    "B": lambda s: replace(s, B=2 * s.B),
    "T": lambda s: replace(s, T=2 * s.T),
    "N": lambda s: replace(s, N=6 - s.N),  # 2 for 4, and 4 for 2
    "views": lambda s: replace(s, views=not s.views),
    "reshard": lambda s: replace(s, reshard=not s.reshard),
}
ONLY_FOR = {"N": ("zero1", "fsdp", "fsdp_bf16"), "views": ("ddp",), "reshard": ("fsdp",)}
DECISIVE = [(program, name) for program in POINTS for name in SIZES if program in ONLY_FOR.get(name, POINTS)]


def drawn(program: str, seed: int) -> list[Setup]:
    return [Setup(**s) for s in draw.setups(program, random.Random(f"{program} {seed}"))]


def both(program: str, s: Setup) -> tuple[float, float]:
    return weighted_memory_formulas.resident(program, s, Weights()), weighted_memory_formulas.peak(
        program, s, Weights()
    )


@pytest.mark.parametrize(("program", "name"), DECISIVE)
def test_the_right_answer_changes_with_each_input_on_every_draw(program, name):
    for seed in range(20):
        changes = [
            abs(other / right - 1)
            for s in drawn(program, seed)
            for other, right in zip(both(program, SIZES[name](s)), both(program, s), strict=True)
        ]
        assert max(changes) > TOLERANCES["peak"][0], seed


@pytest.mark.parametrize(("program", "name"), DECISIVE)
def test_each_input_is_drawn_with_several_values(program, name):
    assert len({getattr(s, name) for seed in range(20) for s in drawn(program, seed)}) >= 2


@pytest.mark.parametrize(
    "function",
    [weighted_memory_formulas.block_params, weighted_memory_formulas.root_params, weighted_memory_formulas.kept_bytes],
)
def test_counts_change_with_each_size_that_they_have(function):
    inputs = {"block_params": "DKF", "root_params": "VD", "kept_bytes": "DHKFBT"}[function.__name__]
    for seed in range(20):
        setups = [Setup(**s) for s in judge_counts.drawn(seed)]
        for name in inputs:
            assert any(function(SIZES[name](s)) != function(s) for s in setups), (name, seed)


# Wrong answers


def share(errors: list[float], of: str) -> float:
    full, half = TOLERANCES[of]
    return 1 if max(errors) <= full else 0.5 if max(errors) <= half else 0


def points_on(program: str, seed: int, predict, right) -> float:
    setups = drawn(program, seed)
    errors = [[abs(m / r - 1) for m, r in zip(predict(s), right(s), strict=True)] for s in setups]
    resident, peak = zip(*errors, strict=True)
    return share(resident, "resident") * RESIDENT_POINTS + share(peak, "peak") * (POINTS[program] - RESIDENT_POINTS)


def predictors(sample: Sample) -> dict:
    names = run_cells(sample.notebook())
    return {program: names[f"predict_{program}"] for program in POINTS}


@pytest.mark.night
def test_who_breaks_a_rule_loses_the_same_points_on_every_draw(monkeypatch):
    monkeypatch.setattr("grading.check", lambda *_: None)
    breakers = {name for rule in rule_coverage.rules(LAB) for name in rule.mutants}
    by_name = {sample.name: sample for sample in samples(LAB)}
    right = predictors(by_name["right"])
    for name in sorted(breakers - {"asks_the_planner", "sizes_by_torch"}):  # refused before they predict
        mine = predictors(by_name[name])
        for program in POINTS:
            got = {points_on(program, seed, mine[program], right[program]) for seed in range(30)}
            assert got == {by_name[name].points.get(f"lab1.{program}", POINTS[program])}, (name, program)
