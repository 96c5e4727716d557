"""Lab 3's class before the referee, and what stands twice: in the notebook, and in the referee's own copy."""

import ast
import inspect

import pytest
from submissions import checks_that_nothing_needs, class_of, try_sample

from grading.checks.lab3_zero import account, drills, owners, truth
from grading.samples import read_lab

LAB = "lab3_zero"
QUICK = ("own_norms",)


@pytest.mark.parametrize("sample", class_of(LAB, QUICK))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_notebook_shows_the_model_and_the_program_that_the_referee_runs():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("solutions", LAB).cells}
    for cell, ours in (("model", drills.Net), ("program", drills.Replicated)):
        theirs = next(n for n in ast.parse(cells[cell]).body if isinstance(n, ast.ClassDef))
        assert _code(theirs) == _code(ast.parse(inspect.getsource(ours)).body[0])
    sizes = next(n for n in ast.parse(cells["model"]).body if isinstance(n, ast.Assign))
    assert eval(ast.unparse(sizes.value)) == drills.SIZES


def _code(node: ast.ClassDef) -> str:
    """Without the docstring."""
    documented = isinstance(node.body[0], ast.Expr)
    return "\n".join(map(ast.unparse, node.body[documented:]))


@pytest.mark.parametrize("tier", drills.BUDGETS)
def test_budgets_are_the_states_and_the_same_spare_on_every_tier(tier):
    """Held: weights, 2 of AdamW, 6% to spare. Peak: gradients too, and 55%, of which a bucket takes at most 9%."""
    psi = account.psi_bytes(tier)
    for fraction in (0.1, 0.25):
        assert drills.budget_bytes(tier, "held", fraction) == pytest.approx((1.06 + 2 * fraction) * psi, rel=0.01)
        assert drills.budget_bytes(tier, "peak", fraction) == pytest.approx((1.55 + 3 * fraction) * psi, rel=0.01)
    assert max(account.bucket_bytes(tier)) < 0.09 * psi


@pytest.mark.parametrize("n", (1, 2, 4, 8))
def test_the_rule_gives_every_element_one_owner(n):
    for instance in owners.drawn(n):
        times = [[0] * size for size in instance["sizes"]]
        for pieces in owners.expected(instance):
            for i, start, end in pieces:
                times[i][start:end] = [t + 1 for t in times[i][start:end]]
        assert all(t == 1 for parameter in times for t in parameter)


@pytest.mark.parametrize("world_size", (2, 4, 8))
def test_shares_are_never_all_equal(world_size):
    for seed in range(20):
        shares = drills.shares(seed, world_size)
        assert len(shares) == world_size and sorted(shares) == [2, *[4] * (world_size - 2), 5]


def test_a_collective_counts_as_hidden_only_if_a_gradient_is_made_before_it_is_waited_for():
    """Two buckets of 1000 bytes, sent at 1 and 3, while gradients are made at 0, 2 and 4, and backward ends at 5."""

    def reply(waits):
        collectives = [{"kind": "reduce_scatter", "bytes": 1000, "sent": 750, "at": at} for at in (1.0, 3.0)]
        return {"collectives": collectives, "gradients": [0.0, 2.0, 4.0], "waits": waits, "ends": [5.0]}

    assert account.covered(reply([2.5, 4.5])) == 1.0
    assert account.covered(reply([1.5, 3.5])) == 0.0
    assert account.covered(reply([1.5, 4.5])) == 0.5
    assert account.covered(reply([])) == 1.0
    assert account.issued_early(reply([1.5, 3.5])) == 1.0


def test_mistakes_can_be_told_apart():
    """Each changes the weights by far more than what passes as the same."""
    plan = (drills.PlannedStep(2, 1.0),)
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
