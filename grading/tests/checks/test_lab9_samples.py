"""Lab 9's class before the referee, the draws, and the judges on what ranks might reply."""

import ast
from types import SimpleNamespace

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, judge_replies, try_sample

from grading.checks.lab9_experts import draws, judge_placement, judge_sent_bytes, replies_and_errors
from grading.checks.lab9_experts.on_ranks import BUDGETS
from grading.checks.lab9_experts.truth import MISTAKES, mixture, truth
from grading.references.lab9_experts.best_placement import search
from grading.samples.sample import read_lab, samples
from shardlab.tier import TIERS

LAB = "lab9_experts"
SESSION = SimpleNamespace(seed=1, tier=TIERS["cpu"])
CASES = draws.cases(1, 4)


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 10.0)  # for those that hang
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.timeout(200)
def test_the_solution_is_right_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    for check in ("lab9.outputs", "lab9.bytes"):
        assert unboxed(LAB).judge(answers(right), only=check)[0].passed


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_notebooks_layer_is_the_truth():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("labs", LAB).cells}
    names = {"nn": torch.nn, "torch": torch, "F": torch.nn.functional}
    exec(cells["layer"], names)
    x = torch.randn(9, 24, dtype=torch.float64)
    weights = draws.weights(CASES[0])
    torch.testing.assert_close(names["Mixture"](*weights, 3)(x), mixture(x, *weights, 3))


def test_the_notebook_measures_as_the_judge_does():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("labs", LAB).cells}
    names: dict = {}
    exec(compile(ast.parse(cells["measures"]), "measures", "exec"), names)
    instance = judge_placement.drawn(3)[0]
    homes = search(instance, 1)[1]
    assert names["busiest_rank"](homes, instance["chosen"], 4) == judge_placement.busiest(homes, **instance)
    assert names["ranks_visited"](homes, instance["chosen"]) == judge_placement.mean_visits(homes, **instance)


@pytest.mark.parametrize("n", (2, 4, 8))
def test_the_draws_are_uneven_and_no_choice_hangs_on_rounding(n):
    for seed in range(3):
        cases = draws.cases(seed, n)
        assert {case.top_k for case in cases} >= {1, 2, 3} and max(case.top_k for case in cases) >= 4
        for case in cases:
            assert {*case.homes} == {*range(n)}
            assert case.homes != sorted(case.homes) or n == 2
        assert any(0 in tokens for case in cases for tokens in case.tokens)
        assert all(min(tokens) > 0 for tokens in cases[3].tokens)
        skewed = cases[2]
        assert skewed.homes.count(skewed.homes[skewed.idle]) == 1  # this rank gets no row
        assert all(not (draws.choices(skewed, i, r) == skewed.idle).any() for i in range(3) for r in range(n))
        x, router = draws.batch(cases[3], 0, 0)[0], draws.weights(cases[3])[0]
        assert torch.equal((x @ router.T).topk(cases[3].top_k).indices, draws.choices(cases[3], 0, 0))


def test_sending_once_saves_far_more_than_the_budget_spares():
    for seed in range(10):
        case = draws.cases(seed, 4)[3]
        for due in judge_sent_bytes.due(case, 0):
            assert due.choices * due.row_bytes > 1.1 * due.most


# The judges alone, on what ranks might reply


def replies(change=lambda case, rank, reply: None, times: float = 1.0) -> list[list[dict]]:
    """Return by rank what a right answer's ranks reply of all cases, but for what `change` makes of it."""
    found = []
    for rank in range(4):
        of_rank = []
        for case in CASES:
            right, mine = truth(case), [e for e, home in enumerate(case.homes) if home == rank]
            passes = [
                {"out": right.out[i][rank].tolist(), "x": right.x[i][rank].tolist(), "forward": n, "backward": n}
                for i in range(len(case.tokens))
                for n in [judge_sent_bytes.due(case, i)[rank].least]
            ]
            if case.order:
                passes[-1] |= {"evaluated": passes[-1]["out"], "evaluation": passes[-1]["forward"]}
            reply = {"built": 0, "passes": passes, "none": [], "router": right.router.tolist()}
            reply |= {"up": (times * right.up[mine]).tolist(), "down": (times * right.down[mine]).tolist()}
            change(case, rank, reply)
            of_rank.append(reply)
        found.append(of_rank)
    return found


def judged(check: str, *change, **how):
    return judge_replies(check, {"run": replies(*change, **how)})


@pytest.mark.parametrize("check, points", [("lab9.outputs", 3), ("lab9.gradients", 5), ("lab9.bytes", 5)])
def test_the_truth_is_right(check, points):
    assert judged(check).points == points


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("case", range(4))
def test_one_token_of_one_rank_is_enough(case, rank):
    tolerance = replies_and_errors.TOLERANCE[CASES[case].wire]
    size = float(torch.cat(truth(CASES[case]).out[-1]).norm(dim=1).square().mean().sqrt())

    def off_by(part):
        def change(which, of, reply):
            if which == CASES[case] and of == rank and reply["passes"][-1]["out"]:
                reply["passes"][-1]["out"][-1][0] += part * tolerance * size

        return change

    assert judged("lab9.outputs", off_by(0.9)).points == 3
    if CASES[case].tokens[-1][rank]:
        verdict = judged("lab9.outputs", off_by(1.1))
        assert verdict.points == 0 and f"1 of rank {rank}'s" in verdict.cause


def test_experts_that_all_wrong_tokens_share_are_named():
    def spoils(experts):
        def change(case, rank, reply):
            if rank == 1 and case == CASES[0]:
                hit = torch.isin(draws.choices(case, 0, rank), torch.tensor(experts)).any(1)
                reply["passes"][0]["out"] = [
                    [2 * a for a in row] if h else row for row, h in zip(reply["passes"][0]["out"], hit, strict=True)
                ]

        return judged("lab9.outputs", change).cause

    for experts in ([2], [1, 5]):
        ranks = sorted({CASES[0].homes[e] for e in experts})
        cause = spoils(experts)
        assert f"those that chose one of the experts {', '.join(map(str, experts))}, which live on rank" in cause, cause
        assert all(str(rank) in cause.rsplit("rank", 1)[1] for rank in ranks)


def test_factors_of_experts_are_named():
    assert "experts are 4 times" in judged("lab9.gradients", times=4.0).cause
    assert "experts are 1/4" in judged("lab9.gradients", times=0.25).cause
    assert "missing" in judged("lab9.gradients", times=0.0).cause
    assert judged("lab9.gradients", times=1 + 1e-7).points == 5
    assert judged("lab9.gradients", times=1 + 5e-6).points == 0


@pytest.mark.parametrize("name", ("forward", "backward"))
@pytest.mark.parametrize("rank", range(4))
def test_bytes_have_two_bounds_on_each_rank(name, rank):
    def sends(more, bound):
        def change(case, of, reply):
            if of == rank:
                reply["passes"][0][name] = getattr(judge_sent_bytes.due(case, 0)[rank], bound) + more

        return change

    assert judged("lab9.bytes", sends(0, "most")).points == 5
    assert f"rank {rank} sends" in judged("lab9.bytes", sends(1, "most")).cause
    few = judged("lab9.bytes", sends(-1, "least"))
    assert few.points == 0 and "some rows were not sent" in few.cause


@pytest.mark.parametrize("name", ("forward", "backward"))
def test_the_store_counts_as_sent_and_carries_no_rows(name):
    def writes(stored, messages):
        def change(case, of, reply):
            least = judge_sent_bytes.due(case, 0)[of].least
            in_store, sent = stored * least, messages * least
            reply["passes"][0] |= {name: sent + in_store, f"{name} by the store": in_store}

        return change

    assert judged("lab9.bytes", writes(0.001, 1.0)).points == 5
    assert "times what is allowed" in judged("lab9.bytes", writes(1.0, 1.0)).cause
    assert "messages have 0 bytes" in judged("lab9.bytes", writes(1.0, 0.0)).cause


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(
    "name, own, words",
    [
        ("forward", True, "if the tokens are sent as float32"),
        ("forward", False, "if the results are sent as float32"),
        ("backward", True, "if the results' gradients are sent as float32"),
        ("backward", False, "if the tokens' gradients are sent as float32"),
    ],
)
def test_the_exchange_that_is_too_wide_is_named(rank, name, own, words):
    def change(case, of, reply):
        if of == rank and case.wire == "bfloat16":
            due = judge_sent_bytes.due(case, 0)[rank]
            reply["passes"][0][name] += due.row_bytes * (due.own_rows if own else due.rows - due.own_rows)

    assert words in judged("lab9.bytes", change).cause


def test_the_constructor_may_send_a_little():
    def builds(n):
        return lambda case, rank, reply: reply.update(built=n if rank == 2 else 0)

    assert judged("lab9.bytes", builds(BUDGETS["for_a_pass"])).points == 5
    assert "constructor of rank 2" in judged("lab9.bytes", builds(BUDGETS["for_a_pass"] + 1)).cause


def test_bytes_need_right_outputs():
    def nothing(case, rank, reply):
        for one in reply["passes"]:
            one["out"] = [[0.0, 0.0] for _ in one["out"]]

    assert judged("lab9.bytes", nothing).cause.endswith("see lab9.outputs.")
    assert judged("lab9.bytes", times=2.0).points == 5


def test_mistakes_can_be_told_apart():
    case = CASES[0]
    found = [torch.cat(truth(case, words).out[0]) for words in [*MISTAKES][:5]] + [torch.cat(truth(case).out[0])]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert (a - b).norm() > 0.05 * b.norm() or case.top_k == 2  # the first of two is all but the last
    assert (found[0] - found[-1]).norm() > 0.05 * found[-1].norm()


def placed(change=lambda homes: homes):
    return judge_replies("lab9.placement", {"place": lambda instances: [[change(search(i)[1]) for i in instances]]})


def test_a_placement_is_judged_by_rows_and_visits():
    assert placed().points == 5
    assert placed(lambda homes: homes[:-1]).points == 0
    assert "0 to 3" in placed(lambda homes: [rank + 1 for rank in homes]).cause
    assert "each rank holds" in placed(lambda homes: [0] * len(homes)).cause
    assert placed(lambda homes: "None").points == 0
    by_number = placed(lambda homes: [e % 4 for e in range(len(homes))])
    assert by_number.points in (0, 2) and by_number.points < 5


def test_the_drawn_layers_make_rows_and_visits_disagree():
    """The best placement for visits alone makes a rank too busy in at least one of a grading's layers."""
    for seed in range(4):
        too_busy = 0
        for instance in judge_placement.drawn(seed):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("grading.references.lab9_experts.best_placement.BUSIEST", 9.0)
                homes = search(instance, 6)[1]
            too_busy += judge_placement.busiest(homes, **instance) > judge_placement.BUSIEST
        assert too_busy, seed


def test_a_forward_without_a_graph_counts():
    def change(key, new):
        def changed(case, rank, reply):
            if key in reply["passes"][-1]:
                old = reply["passes"][-1][key]
                reply["passes"][-1][key] = new(old)

        return changed

    verdict = judged("lab9.outputs", change("evaluated", lambda out: [[2 * a for a in row] for row in out]))
    assert verdict.points == 0 and "under torch.no_grad()" in verdict.cause
    for less in (0, 0.5):
        verdict = judged("lab9.bytes", change("evaluation", lambda n, less=less: n * less))
        assert verdict.points == 0 and "in evaluation" in verdict.cause


def test_backwards_come_neither_in_the_order_of_forwards_nor_in_its_reverse():
    for seed in range(10):
        case = draws.cases(seed, 4)[2]
        assert sorted(case.order) == [*range(case.together)] and case.order not in ([0, 1, 2], [2, 1, 0])
