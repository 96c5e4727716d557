"""Lab 1's class before the referee; and what its judges rest on: a formula that real ranks and the planner agree with,
and a wall between predictions and the libraries that would make them."""

import ast
import inspect
import random
import textwrap

import cloudpickle
import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, surprises_of, try_sample

from grading.checks.lab1_memory import draw, judge_counts, judge_predictions, named_mistake, on_ranks, programs
from grading.checks.lab1_memory.judge_predictions import TOLERANCES
from grading.checks.lab1_memory.programs import Setup
from grading.checks.lab1_memory.refused_imports import foreign
from grading.references import lab1_memory
from grading.references.lab1_memory import mistakes, weighted_memory_formulas
from grading.references.lab1_memory.weighted_memory_formulas import Weights
from grading.samples.sample import read_lab
from shardlab.model import ModelConfig
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup as PlanSetup
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine

ONE_RANK = (
    "lab1.counts",
    "lab1.one_rank",
    "lab1.ddp",
    "lab1.zero1",
    "lab1.fsdp",
    "lab1.fsdp_bf16",
)  # checks whose drills need no other
LAB = "lab1_memory"
STRATEGIES = {
    "one_rank": {"sharding": "NONE"},
    "ddp": {"sharding": "DDP"},
    "zero1": {"sharding": "DDP+ZERO_1", "gradient_as_bucket_view": True},
    "fsdp": {"sharding": "FULL_SHARD"},
    "fsdp_bf16": {"sharding": "FULL_SHARD", "precision": "bf16-mixed", "recompute": "full"},
}


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


def by_formula(program: str, setups: list[dict]) -> list[list[dict]]:
    """What the reference's ranks measure, up to what the statement leaves out."""
    of = {name: mistakes.predictions(program, name, [Setup(**s) for s in setups], lambda s: {}) for name in TOLERANCES}
    return [[{name: {"parameters": of[name][i]} for name in of} for i in range(len(setups))]]


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB, measure=by_formula), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_programs_are_those_that_the_notebook_shows():
    shown = {
        node.name: ast.dump(node)
        for cell in read_lab("labs", LAB).cells
        if cell.cell_type == "code" and not cell.metadata.nbgrader.solution
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    names = (*STRATEGIES, "make_model", "train_step", "track_step")
    for function in (getattr(programs, name) for name in names):
        assert shown[function.__name__] == ast.dump(ast.parse(inspect.getsource(function)).body[0])
    fields = [line for line in inspect.getsource(Setup).splitlines() if ": " in line]
    setup = next(c.source for c in read_lab("labs", LAB).cells if c.metadata.nbgrader.grade_id == "setup")
    assert [line for line in fields if line not in setup] == []


# The formula that mistakes are told by, beside the planner, a second route


def planned_peak(program: str, s: Setup) -> float:
    options = {"precision": "fp32", "gradient_as_bucket_view": s.views, "optimizer_kernel": "fused"}
    options |= STRATEGIES[program]
    if program == "fsdp" and not s.reshard:
        options["sharding"] = "SHARD_GRAD_OP"
    shape = Shape.of("drawn", ModelConfig(s.V, s.D, s.L, s.H, s.K, s.F, s.T))
    setup = PlanSetup(shape, machine("dgx-h100"), s.N, Strategy(micro_batch=s.B, seq_len=s.T, **options))
    return memory_plan(setup, on_gpu=False).peak.n_bytes


@pytest.mark.parametrize("program", STRATEGIES)
def test_what_the_statement_leaves_out_stays_well_below_the_tolerance(program):
    for seed in range(15):
        for s in drawn(program, seed):
            error = weighted_memory_formulas.peak(program, s, Weights()) / planned_peak(program, s) - 1
            assert abs(error) < judge_predictions.TOLERANCES["peak"][0] * 0.6, s


@pytest.mark.parametrize("program", STRATEGIES)
def test_each_mistake_costs_points_on_any_draw_and_is_named(program):
    for words, weights in mistakes.candidates(program):
        for seed in range(10):
            setups = drawn(program, seed)
            wrong = {of: mistakes.predictions(program, of, setups, weights) for of in judge_predictions.TOLERANCES}
            right = {of: mistakes.predictions(program, of, setups, lambda s: {}) for of in judge_predictions.TOLERANCES}
            over = {of: worst(wrong[of], right[of]) / full for of, (full, _) in judge_predictions.TOLERANCES.items()}
            assert max(over.values()) > 1.2, (words, seed)
            of = "resident" if over["resident"] > 1 else "peak"
            said = named_mistake.named(lab1_memory.explained(program, list(map(vars, setups))), of, wrong[of])
            candidates = mistakes.candidates(program)
            same = [mistakes.predictions(program, of, setups, others) for w, others in candidates if w == said]
            assert said == words or min(worst(wrong[of], other) for other in same) < 1e-9, (words, seed, said)


def worst(values: list[float], due: list[float]) -> float:
    return max(abs(v / d - 1) for v, d in zip(values, due, strict=True))


def drawn(program: str, seed: int) -> list[Setup]:
    return [Setup(**s) for s in draw.setups(program, random.Random(f"{program} {seed}"))]


def test_setups_are_what_the_statement_says():
    for program in STRATEGIES:
        for seed in range(50):
            for s in drawn(program, seed):
                assert s.D == s.H * s.E
                assert s.N in (1, 2, 4)
                assert 64 <= s.D <= 128
                assert 2 <= s.L <= 7
                assert 64 <= s.V <= 4096
                assert not any(n % s.N for n in (s.V, s.D, s.K * s.E, s.F))
                assert s.B * s.T >= 2 * s.D or not program.startswith("fsdp")


# Points


def outcome(resident: float, peak: float) -> list[judge_predictions._Outcome]:
    """Predictions that are so many times what was measured."""
    s = Setup(V=64, D=64, L=2, H=2, K=1, E=32, F=128, N=1, B=1, T=16)
    truth = [{"resident": {"parameters": 1000}, "peak": {"parameters": 2000}}]
    mine = {"resident": [1000 * resident], "peak": [2000 * peak]}
    explained = lab1_memory.explained("one_rank", [vars(s)])
    return [
        judge_predictions._Outcome("one_rank", of, [vars(s)], mine[of], truth, explained) for of in ("resident", "peak")
    ]


@pytest.mark.parametrize(
    ("off", "shares"),
    [(0.009, (1, 1)), (0.02, (0.5, 0.5)), (0.06, (0, 0.5)), (-0.04, (0.5, 0.5)), (0.09, (0, 0.5)), (-0.11, (0, 0))],
)
def test_points_for_closeness(off, shares):
    assert tuple(o.share for o in outcome(1 + off, 1 + off)) == shares


@pytest.mark.parametrize("unit", judge_predictions.UNITS)
def test_a_wrong_unit_is_named(unit):
    resident, peak = outcome(1 / unit, 1 / unit)
    assert judge_predictions.UNITS[unit] in resident.cause(states_are_right=False)
    assert judge_predictions.UNITS[unit] in peak.cause(states_are_right=False)


def test_a_peak_that_is_a_few_percent_off_is_no_wrong_unit():
    _, peak = outcome(1, 2**20 / 10**6)
    assert "MiB is taken" not in peak.cause(states_are_right=True)


def test_a_count_that_is_off_is_said_in_sizes():
    setups = [vars(s) for s in drawn("one_rank", 0)]
    due = [10**6] * len(setups)
    mine = [n - 2 * 4 * s["B"] * s["T"] * s["F"] for n, s in zip(due, setups, strict=True)]
    assert judge_counts._difference("kept_bytes", setups, mine, due).startswith("is too small by 2 x B T F")


# A prediction is arithmetic


def answer(source: str):
    """`predict`, as it arrives."""
    names = {"__name__": "submission"}
    exec(textwrap.dedent(source), names)
    return cloudpickle.loads(cloudpickle.dumps(names["predict"]))


ARITHMETIC = {
    "with math and helpers": "import math\ndef half(x): return math.ceil(x / 2)\ndef predict(s): return half(s.D), s.V",
    "a partial one": "from functools import partial\npredict = partial(lambda k, s: (k * s.D, s.V), 3)",
    "an object": "class P:\n    def __call__(self, s): return s.D, s.V\npredict = P()",
    "torch is there, unused": "import torch\ndef predict(s): return s.D, s.V",
}
NO_ARITHMETIC = {
    "a module": "import torch\ndef predict(s): return torch.tensor(s.D).item(), 0",
    "a function, in a helper": "from shardlab.model import preset\ndef f(): return preset\n"
    "def predict(s): return f()('1M').n_params, 0",
    "in a container": "from shardlab.model import preset\nby = {'x': [preset]}\ndef predict(s): return by['x'][0], 0",
    "in a closure": "from shardlab.model import preset\ndef make(f):\n    return lambda s: (f('1M').n_params, 0)\n"
    "predict = make(preset)",
    "in a default": "from shardlab.model import preset\ndef predict(s, f=preset): return f('1M').n_params, 0",
    "in a method": "from shardlab.model import preset\nclass P:\n    def __call__(self, s): return preset('1M'), 0\n"
    "predict = P()",
    "under a partial": "import torch\nfrom functools import partial\ndef f(k, s): return torch.ones(k), 0\n"
    "predict = partial(f, 3)",
    "imported inside": "def predict(s):\n    import torch\n    return torch.ones(3), 0",
    "imported by name": "def predict(s):\n    import importlib\n"
    "    return importlib.import_module('shardlab.model'), 0",
    "asked elsewhere": "import subprocess\ndef predict(s):\n"
    "    return int(subprocess.run(['shardlab'], capture_output=True).returncode), 0",
    "asked through a pipe": "import os\ndef predict(s): return len(os.popen('shardlab').read()), 0",
    "looked up": "import sys\ndef predict(s): return sys.modules['torch'].ones(3), 0",
}
SETUP = dict(V=64, D=64, L=2, H=2, K=1, E=32, F=128, N=1, B=1, T=16)


@pytest.mark.parametrize("source", ARITHMETIC.values(), ids=ARITHMETIC)
def test_arithmetic_is_let_through(source):
    assert on_ranks.predict(answer(source), [SETUP])[0][0][1] == 64


@pytest.mark.parametrize("source", NO_ARITHMETIC.values(), ids=NO_ARITHMETIC)
def test_what_is_none_is_refused(source):
    try:
        reply = on_ranks.predict(answer(source), [SETUP])
    except KeyError:  # not among the loaded modules while predictions are made
        return
    assert set(reply) == {"refused"}
    assert judge_predictions.unreadable(reply, 1, 2, "").startswith("a prediction is arithmetic")


def test_a_recursive_helper_is_walked_through_once():
    assert foreign(answer("def predict(s): return predict(s) if s else (1, 1)")) is None


@pytest.mark.parametrize("returned", ["None", "(1,)", "(1, 'x')", "(1, float('nan'))", "[1, 2, 3]"])
def test_what_is_no_prediction_is_said(returned):
    reply = on_ranks.predict(answer(f"def predict(s): return {returned}"), [SETUP])
    assert "must be (a, b), finite numbers" in judge_predictions.unreadable(reply, 1, 2, "(a, b)")
