"""Lab 3's class before the referee, and what stands twice: in the notebook, and in the referee's own copy."""

import ast
import inspect
from types import SimpleNamespace

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.checks.lab3_zero import judge_norm, judge_owners, judge_skipped_steps, judge_update, on_ranks, truth
from grading.samples.sample import read_lab, samples
from shardlab.tier import TIERS

ONE_RANK = ("lab3.shards",)  # checks whose drills need no other
LAB = "lab3_zero"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_notebook_shows_the_model_and_the_program_that_the_referee_runs():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("solutions", LAB).cells}
    for cell, ours in (("model", on_ranks.Net), ("program", on_ranks.Replicated)):
        theirs = next(n for n in ast.parse(cells[cell]).body if isinstance(n, ast.ClassDef))
        assert _code(theirs) == _code(ast.parse(inspect.getsource(ours)).body[0])
    sizes = next(n for n in ast.parse(cells["model"]).body if isinstance(n, ast.Assign))
    assert eval(ast.unparse(sizes.value)) == on_ranks.SIZES


def _code(node: ast.ClassDef) -> str:
    """Without the docstring."""
    documented = isinstance(node.body[0], ast.Expr)
    return "\n".join(map(ast.unparse, node.body[documented:]))


@pytest.mark.parametrize("n", (1, 2, 4, 8))
def test_the_rule_gives_every_element_one_owner(n):
    for instance in judge_owners.drawn(n):
        times = [[0] * size for size in instance["sizes"]]
        for pieces in judge_owners.expected(instance):
            for i, start, end in pieces:
                times[i][start:end] = [t + 1 for t in times[i][start:end]]
        assert all(t == 1 for parameter in times for t in parameter)


@pytest.mark.parametrize("world_size", (2, 4, 8))
def test_shares_are_never_all_equal(world_size):
    for seed in range(20):
        shares = on_ranks.shares(seed, world_size)
        assert len(shares) == world_size and sorted(shares) == [2, *[4] * (world_size - 2), 5]


def test_mistakes_can_be_told_apart():
    """Each changes the weights by far more than what passes as the same."""
    plan = (on_ranks.PlannedStep(2, 1.0),)
    run = truth.Setting(1, 8 / 1024, (4, 5, 3, 4), "SGD", 1e9, plan)
    right = truth.simulate(run)[0].change
    for words, combine in truth.COMBINED_WRONGLY.items():
        wrong = truth.simulate(run, combine=combine)[0].change
        assert (wrong - right).norm() > 0.1 * right.norm(), words
    tight = run._replace(max_norm=0.5 * truth.simulate(run)[0].norm)
    right = truth.simulate(tight)[0].change
    for words, clip in truth.CLIPPED_WRONGLY.items():
        if clip is not truth.always:  # which differs below max_norm only
            assert (truth.simulate(tight, clip=clip)[0].change - right).norm() > 0.02 * right.norm(), words


# The judges alone, on what ranks might reply


def session(seed: int = 1) -> SimpleNamespace:
    return SimpleNamespace(seed=seed, tier=TIERS["cpu"])


@pytest.fixture(scope="module")
def norms():
    """The right ones of each step."""
    first = truth.simulate(judge_update.setting(session(), "none", 1.0, judge_norm.PLAN[:1]))[0].norm
    return [step.norm for step in truth.simulate(judge_update.setting(session(), "none", 1.5 * first, judge_norm.PLAN))]


def judged_norms(*of_ranks: list[float]):
    return judge_replies(
        "lab3.norm", {"train": [[{"norm": x, "is_scalar": True, "updates": 0} for x in steps] for steps in of_ranks]}
    )


def test_the_norm_is_asked_of_every_rank_at_every_step(norms):
    assert judged_norms(*[norms] * 4).points == 2
    assert judged_norms(*[[(1 - 1e-5) * x for x in norms]] * 4).points == 2
    for rank in range(4):
        for step in range(3):
            of_ranks = [list(norms) for _ in range(4)]
            of_ranks[rank][step] *= 1.00003
            verdict = judged_norms(*of_ranks)
            assert verdict.points == 0, (rank, step)
            assert f"step {step + 1}: the ranks return different norms" in verdict.cause


def test_what_explains_all_steps_is_named(norms):
    own = [[x * share**0.5 for x in norms] for share in (0.1, 0.2, 0.3, 0.4)]
    said = {
        "put them together": judged_norms(*own),
        "the norm's square": judged_norms(*[[x * x for x in norms]] * 4),
        "the norm of a sum over ranks": judged_norms(*[[4 * x for x in norms]] * 4),
        "those of the whole gradient, added up": judged_norms(*[[2 * x for x in norms]] * 4),
        "averaged over ranks": judged_norms(*[[x / 2 for x in norms]] * 4),
        "0 was returned": judged_norms(*[[0.0] * 3] * 4),
        "the step before was right": judged_norms(*[[norms[0], 4 * norms[1], norms[2]]] * 4),
        "was returned and": judged_norms(*[[float("nan")] * 3] * 4),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}
    assert "agree with" not in said["the step before was right"].cause


NOTHING_ODD = {"moved": False, "updates": 0, "is_scalar": True}


def replies_of(steps: list[truth.Step], times: float = 1.0, ranks: int = 4) -> list[list[dict]]:
    """Of a training whose weights changed so, on all ranks alike."""
    seen = [
        {"change": {"all": (times * step.change).tolist()}, "bits": str(k), "still": step.still} | NOTHING_ODD
        for k, step in enumerate(steps)
    ]
    return [[dict(step) for step in seen] for _ in range(ranks)]


@pytest.fixture(scope="module")
def trained():
    """The steps of the judge's three runs; and with two mistakes."""
    sgd, adamw = judge_update.unclipped(session()), judge_update.clipped(session())
    summed = next(iter(truth.COMBINED_WRONGLY.values()))
    return {
        "SGD": truth.simulate(sgd),
        judge_update.TINY: truth.simulate(judge_update.clipped_a_little(session())),
        "AdamW": truth.simulate(adamw),
        "summed": truth.simulate(sgd, combine=summed),
        "never clipped": truth.simulate(adamw, clip=truth.never),
    }


@pytest.fixture
def judged_update(trained):
    def judged(sgd: list, adamw: list, tiny: list | None = None):
        runs = {"SGD": sgd, "AdamW": adamw, judge_update.TINY: tiny or replies_of(trained[judge_update.TINY])}
        return judge_replies("lab3.update", {"train": lambda optimizer, **_: runs[optimizer]})

    return judged


def test_weights_are_those_of_one_process_on_every_rank_to_the_bit(trained, judged_update):
    right, right_adamw = replies_of(trained["SGD"]), replies_of(trained["AdamW"])
    assert judged_update(right, right_adamw).points == 4
    assert judged_update(replies_of(trained["SGD"], 1.0002), right_adamw).points == 4
    assert judged_update(replies_of(trained["SGD"], 1.0004), right_adamw).points == 0
    assert judged_update(right, right_adamw, replies_of(trained[judge_update.TINY], 1.0004)).points == 2
    for rank in range(4):
        moved = replies_of(trained["SGD"])
        moved[rank][0]["moved"] = True
        verdict = judged_update(moved, right_adamw)
        assert (verdict.points, "p.data points to other memory" in verdict.cause) == (0, True)
    summed = judged_update(replies_of(trained["summed"]), right_adamw)
    assert (summed.points, "summed over ranks and not divided" in summed.cause) == (0, True)
    never_clipped = judged_update(right, replies_of(trained["never clipped"]))
    assert (never_clipped.points, "never clipped" in never_clipped.cause) == (2, True)
    for rank in range(4):
        other_bits = replies_of(trained["SGD"])
        other_bits[rank][1]["bits"] = "other"
        verdict = judged_update(other_bits, right_adamw)
        assert (verdict.points, "differ, if only in their last bits" in verdict.cause) == (0, True)
        one_wrong = replies_of(trained["SGD"])
        one_wrong[rank][2]["change"]["all"] = [0.0 for _ in one_wrong[rank][2]["change"]["all"]]
        assert judged_update(one_wrong, right_adamw).points == 0


POISONED = range(1, 2 * len(judge_skipped_steps.POISONED), 2)  # the numbers of the steps to be skipped


def skipped(rank: int | None = None, step: int = 1, **other) -> list[list[dict]]:
    """A run in which all skip what they should; `other` of what one rank replies of one step."""

    def reply(k: int) -> dict:
        healthy = k // 2 + 1  # so far
        change = {"all": [float(healthy), -1.0 * healthy] * 2}
        norm = float("nan") if k in POISONED else 1.0
        return {"bits": str(healthy), "change": change, "norm": norm, "still": {}} | NOTHING_ODD

    replies = [[reply(k) for k in range(2 * len(judge_skipped_steps.POISONED) + 1)] for _ in range(4)]
    if rank is not None:
        replies[rank][step] |= other
    return replies


def judged_skip(poisoned: list):
    def train(plan, **_):
        return poisoned if any(step[2] for step in plan) else skipped()

    return judge_replies("lab3.skip", {"train": train})


def test_a_spoilt_step_is_skipped_by_all_and_the_next_one_is_right():
    assert judged_skip(skipped()).points == 2
    for rank in range(4):
        for step in POISONED:
            changed = judged_skip(skipped(rank, step, bits="other"))
            assert (changed.points, f"the weights of rank {rank} have changed all the same" in changed.cause) == (
                0,
                True,
            )
            finite = judged_skip(skipped(rank, step, norm=1.0))
            assert (finite.points, f"rank {rank} returned a finite norm" in finite.cause) == (0, True)
        after = judged_skip(skipped(rank, 2, change={"all": [2.001, -2.001] * 2}))
        assert (after.points, "without the skipped steps" in after.cause) == (0, True)
    assert judged_skip(skipped(0, 2, change={"all": [2.0001, -2.0001] * 2})).points == 2


@pytest.mark.parametrize("world_size", (2, 4, 8))
def test_every_draw_poisons_each_kind_of_parameter_value_and_micro_batch(world_size):
    for seed in range(20):
        plan = judge_skipped_steps.drawn(SimpleNamespace(seed=seed, tier=SimpleNamespace(world_size=world_size))).plan
        poisons = [step.poison for step in plan if step.poison]
        assert [bool(step.poison) for step in plan] == [k in POISONED for k in range(len(plan))]
        assert {p.value for p in poisons} == {"nan", "inf", "-inf"}
        assert {p.micro_batch for p in poisons} == {0, 1}
        assert {p.rank for p in poisons} >= {*range(min(world_size, 4))} or world_size > len(poisons)
        kinds = {"scale", "embedding.weight", "out.weight"}
        assert {p.parameter for p in poisons} > kinds
        assert {p.parameter.split(".")[-1] for p in poisons} == {"scale", "weight", "bias"}


@pytest.mark.timeout(200)
def test_the_solutions_norm_is_right_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab3.norm")[0].passed
