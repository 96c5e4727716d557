"""Lab 2's class before the referee: right ones in different styles, and every wrong one that a class hands in."""

from itertools import combinations, pairwise

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.boxes.sandbox.kernel_counters import Seen
from grading.checks.lab2_ddp import gradients, judge_bucket_plan, judge_traffic_and_overlap, memory, on_ranks
from shardsim.bucket_overlap import finish_time

ONE_RANK = ("lab2.plan",)  # checks whose drills need no other
LAB = "lab2_ddp"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_better_than_the_judges_best(seed):
    instance = judge_bucket_plan._instance(seed, n_params=8)
    cuts = [(0, *c, 8) for k in range(8) for c in combinations(range(1, 8), k)]
    all_plans = [[b - a for a, b in pairwise(c)] for c in cuts]
    assert min(finish_time(p, **instance) for p in all_plans) == pytest.approx(judge_bucket_plan._best(instance))


# The judges alone, on what ranks might reply

SEED = 1  # of every judgement here: it draws buckets of 0.375 MiB, and a tied model


@pytest.fixture(scope="module")
def the_truth():
    return gradients.truth_of(on_ranks.gradients, SEED, 4, tied=True)


@pytest.fixture
def truth(the_truth, monkeypatch):
    """It is the judge's, too, and worked out once."""
    asked = (on_ranks.gradients, SEED, 4, True)
    monkeypatch.setattr(gradients, "truth_of", lambda *a, tied: {asked: the_truth}[*a, tied])
    return the_truth


def judged_gradients(*of_ranks):
    """By their projections, one for all ranks or one each."""
    vectors = of_ranks * 4 if len(of_ranks) == 1 else of_ranks
    return judge_replies("lab2.gradients", {"gradients": [{"all": v.tolist()} for v in vectors]}, seed=SEED)


@pytest.mark.parametrize(("times", "points"), [(1.0, 4), (1.0009, 4), (0.9991, 4), (1.0012, 0), (0.9988, 0)])
def test_gradients_may_be_off_by_a_thousandth(times, points, truth):
    assert judged_gradients(times * truth.right).points == points


def test_one_rank_with_other_gradients_is_enough(truth):
    for rank in range(4):
        of_ranks = [truth.right * (1.002 if r == rank else 1.0) for r in range(4)]
        verdict = judged_gradients(*of_ranks)
        assert verdict.points == 0
        assert "the ranks ended with different gradients" in verdict.cause


def test_each_mistake_of_gradients_is_named(truth):
    n = truth.total
    said = {
        "few valid tokens weigh as much": judged_gradients(truth.mean_of_rank_means),
        "a mean of means": judged_gradients(truth.mean_of_all_means),
        "never divided by it": judged_gradients(n * truth.right),
        "averaged over ranks, but not divided by the tokens": judged_gradients(n / 4 * truth.right),
        "divided twice": judged_gradients(truth.right / 4),
        "the tokens of the step before": judged_gradients(n / (n + truth.tokens_before) * truth.right),
        "only the last micro-batch counts": judged_gradients(truth.last_micro_batch),
        "nothing was exchanged": judged_gradients(*(truth.local(r) for r in range(4))),
        "not finite": judged_gradients(truth.right * float("nan")),
        "no gradient, or one that should not exist": judged_gradients(truth.right[1:]),
        "differ from the mean over all valid tokens": judged_gradients(truth.right.flip(0)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


LAST = on_ranks.ACCOUNT_SHAPE["count"] - 1


def message(n_bytes: int, **other) -> dict:
    usual = {
        "kind": "all_reduce",
        "bytes": n_bytes,
        "dtype": "Float",
        "micro_batch": LAST,
        "before_last_gradient": True,
    }
    return usual | other


def messages(count: int, total: int | None = None, **other) -> list[dict]:
    """So many, of so many bytes in all; beside a count of tokens, which is not one of them."""
    total = total or judge_traffic_and_overlap._gradient_bytes()
    sizes = [total // count] * (count - 1)
    return [message(8, dtype="Long", micro_batch=0), *(message(n, **other) for n in (*sizes, total - sum(sizes)))]


def judged_account(check: str, sent: list[dict], wire=(None, None), **more):
    mine, reference = ([{"collectives": sent}] * 4, [{"collectives": []}] * 4)
    seen, of_reference = (Seen(wire_bytes=n) for n in wire)
    return judge_replies(
        check, {"record_step": mine, "seen": seen} | more, {"record_step": reference, "seen": of_reference}, seed=SEED
    )


def test_traffic_is_every_gradient_once_in_so_many_messages():
    n, total = (
        judge_traffic_and_overlap._bucket_count(on_ranks.cap_mb(SEED)),
        judge_traffic_and_overlap._gradient_bytes(),
    )
    right = {
        "as many as buckets": judged_account("lab2.traffic", messages(n)),
        "the most": judged_account("lab2.traffic", messages(n + 3)),
        "the fewest": judged_account("lab2.traffic", messages(n - 2)),
        "as the system saw": judged_account("lab2.traffic", messages(n), wire=(114, 100)),
    }
    assert {name: v.cause for name, v in right.items() if v.points != 2} == {}
    said = {
        "each one pays the link's latency": judged_account("lab2.traffic", messages(n + 4)),
        "a bucket closes at bucket_cap_mb": judged_account("lab2.traffic", messages(n - 3)),
        "some parameters are never reduced": judged_account("lab2.traffic", messages(n, total - 4)),
        "goes out more than once": judged_account("lab2.traffic", messages(n, total + 4)),
        "under no_sync nothing but counts": judged_account("lab2.traffic", messages(n, micro_batch=0)),
        "not in their own dtype": judged_account("lab2.traffic", messages(n, dtype="BFloat16")),
        "no gradient was ever sent": judged_account("lab2.traffic", [message(8)]),
        "sent 1.16 times as much": judged_account("lab2.traffic", messages(n), wire=(116, 100)),
        "sent 0.79 times as much": judged_account("lab2.traffic", messages(n), wire=(79, 100)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


def test_overlap_is_half_of_the_bytes_in_time_and_nobody_who_waits_in_backward():
    def judged(early: float, *others_s: float):
        total = judge_traffic_and_overlap._gradient_bytes()
        n_early = int(early * total)
        sent = [message(n_early), message(total - n_early, before_last_gradient=False)]
        late = [{"woke_s": 10.0, "last_gradient_s": 10.5}, *({"woke_s": 0.0, "last_gradient_s": t} for t in others_s)]
        return judged_account("lab2.overlap", sent, late_rank=late)

    assert judge_traffic_and_overlap._gradient_bytes() % 2 == 0
    assert judged(0.5, 9.0, 9.0, 9.0).points == 2
    too_late = judged(0.499, 9.0, 9.0, 9.0)
    assert too_late.points == 0 and "after backward is over" in too_late.cause
    one_waits = judged(0.9, 9.0, 9.0, 10.2)
    assert one_waits.points == 0 and "stands still" in one_waits.cause


def test_memory_may_be_two_fifths_of_the_gradients_above_ddps():
    size = memory._gradient_bytes()

    def judged(peak: float, resident: float, seen: float | None = None):
        """Of one rank, in gradients' sizes; the others hold what DDP holds, 5 and 2. `seen`: by the system, more."""

        def reply(peak, resident):
            peak = {"gradients": int(size), "parameters": int((peak - 1) * size)}
            return {"peak": peak, "resident": {"gradients": int(resident * size)}, "moments": [peak]}

        ddp = reply(5, 2)
        more = [None, None] if seen is None else [int((20 + seen) * size), int(20 * size)]
        mine, reference = (Seen(peak_bytes=n, held_bytes=n and n - 12 * size) for n in more)
        return judge_replies(
            "lab2.memory",
            {"memory": [ddp, reply(peak, resident), ddp, ddp], "seen": mine},
            {"memory": [ddp] * 4, "seen": reference},
            seed=SEED,
        )

    assert judged(5.39, 2.39).points == judged(5, 2, seen=0).points == judged(5, 2, seen=4 * 0.59).points == 2
    for verdict in (judged(5.41, 2), judged(5, 2.41)):
        assert verdict.points == 0
        assert "a copy of them is kept" in verdict.cause
    hidden = judged(5, 2, seen=4 * 0.61)
    assert hidden.points == 0
    assert "the system saw" in hidden.cause
