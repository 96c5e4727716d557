"""Lab 2's class before the referee: right ones in different styles, and every wrong one that a class hands in."""

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.checks.lab2_ddp import (
    judge_gradients,
    judge_memory,
    judge_throughput,
    judge_traffic_and_overlap,
    on_ranks,
)
from grading.checks.lab2_ddp.refused_engines import ENGINES, RefusedEngine, refused
from grading.judge.tensor_projections import distance, project, vector
from shardlab.ddp import assign_buckets

ONE_RANK = ("lab2.plan",)  # checks whose drills need no other
LAB = "lab2_ddp"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed, monkeypatch):
    monkeypatch.setattr(on_ranks, "PLANNING_S", 2.0)
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_proof_of_a_timed_step_does_not_follow_from_proofs_of_its_parts():
    """Else ranks could exchange a few numbers instead of their gradients."""
    draw = torch.Generator().manual_seed(1)
    parts = [torch.nn.Linear(300, 20, bias=False) for _ in range(4)]
    for part in parts:
        part.weight.grad = torch.randn(part.weight.shape, generator=draw)
    proofs = [vector(on_ranks.lap_proof(part, 1)) for part in parts]
    parts[0].weight.grad = torch.stack([part.weight.grad for part in parts]).mean(0)
    due, mean = vector(on_ranks.lap_proof(parts[0], 1)), torch.stack(proofs).mean(0)
    assert abs(mean[0] / due[0] - 1) < 1e-4, "a product alone does"
    assert distance(mean, due) > 2 * judge_throughput.PROOF_TOLERANCE


# The judges alone, on what ranks might reply

SEED = 1  # of every judgement here: it draws buckets of 0.4375 MiB, and a tied model
STEPS = len(on_ranks.MICRO_BATCHES)


@pytest.fixture(scope="module")
def truths():
    return [judge_gradients.truth_of(SEED, 4, step=step) for step in range(STEPS)]


@pytest.fixture
def truth(truths, monkeypatch):
    """That of the last step, of two micro-batches. The judge has the same ones, worked out once."""
    monkeypatch.setattr(judge_gradients, "truth_of", lambda *_, step: truths[step])
    return truths[-1]


def judged_gradients(*of_ranks, step=STEPS - 1, weights=None):
    """By the projections of a step's gradients, one vector for all ranks or one each; the other steps are right."""
    vectors = of_ranks * 4 if len(of_ranks) == 1 else of_ranks
    model = on_ranks.build(SEED, 0, on_ranks.GRADIENT_SHAPE["n_layers"], tied=True, frozen=True)
    right = project(model.named_parameters(), SEED)
    replies = [{"weights": right, "steps": []} for _ in vectors]
    for i in range(STEPS):
        truth = judge_gradients.truth_of(SEED, 4, step=i)
        for reply, own in zip(replies, vectors, strict=True):
            rows = (own if i == step else truth.right).view(-1, 4).tolist()
            reply["steps"].append(dict(zip(truth.names, rows, strict=False)))
    if weights:
        replies[2] = replies[2] | {"weights": weights(right)}
    return judge_replies("lab2.gradients", {"gradients": replies}, seed=SEED)


@pytest.mark.parametrize(("times", "points"), [(1.0, 4), (1.00009, 4), (0.99991, 4), (1.00012, 0), (0.99988, 0)])
def test_gradients_may_be_off_by_a_ten_thousandth_in_any_step(times, points, truth, truths):
    for step in range(STEPS):
        assert judged_gradients(times * truths[step].right, step=step).points == points


def test_one_parameter_of_one_rank_is_enough(truth):
    for i in range(len(truth.names)):
        wrong = truth.right.clone().view(-1, 4)
        wrong[i] *= 1.0003
        verdict = judged_gradients(*[truth.right] * 3, wrong.flatten())
        assert verdict.points == 0
        assert f"1 of {len(truth.names)} parameters differ" in verdict.cause
        assert truth.names[i] in verdict.cause


def test_one_rank_with_other_gradients_is_enough(truth):
    for rank in range(4):
        verdict = judged_gradients(*(truth.right.flip(0) if r == rank else truth.right for r in range(4)))
        assert verdict.points == 0
        assert "the ranks ended with different gradients: " in verdict.cause


def test_a_rank_with_other_weights_is_named(truth):
    verdict = judged_gradients(truth.right, weights=lambda right: right | {on_ranks.FROZEN: [1.0, 2.0, 3.0, 4.0]})
    assert verdict.points == 0
    assert verdict.cause == f"rank 2 does not have rank 0's weights: {on_ranks.FROZEN} differs."


def test_each_mistake_of_gradients_is_named(truth):
    n, last = truth.total, sum(ns[-1] for ns in truth.tokens)
    said = {
        "few valid tokens weigh as much": judged_gradients(truth.mean_of_rank_means),
        "a mean of means": judged_gradients(truth.mean_of_all_means),
        "never divided by it": judged_gradients(n * truth.right),
        "averaged over ranks, but not divided by the tokens": judged_gradients(n / 4 * truth.right),
        "one over the number of ranks": judged_gradients(truth.right / 4),
        "one over the number of micro-batches": judged_gradients(truth.right / 2),
        "the tokens of the steps before": judged_gradients(n / (n + truth.tokens_before) * truth.right),
        "the tokens of the last micro-batch only": judged_gradients(n / last * truth.right),
        "padding was counted, too": judged_gradients(n / truth.positions * truth.right),
        "2.5 times too large.": judged_gradients(2.5 * truth.right),
        "its own number of tokens": judged_gradients(*(n / sum(ns) * truth.right for ns in truth.tokens)),
        "of different size: each divides by another": judged_gradients(*(k * truth.right for k in (1, 2, 3, 4))),
        "only the last micro-batch counts": judged_gradients(truth.last_micro_batch),
        "nothing was exchanged": judged_gradients(*(truth.local(r) for r in range(4))),
        "not finite": judged_gradients(truth.right * float("nan")),
        f"{truth.names[-1]} has no gradient": judged_gradients(truth.right[:-4]),
        "differ from the mean over all valid tokens": judged_gradients(truth.right.flip(0)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}
    assert all(v.cause.startswith(f"in step {STEPS}, of 2 micro-batches, ") for v in said.values())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_finished_engine_is_refused_to_a_submission_alone(engine):
    owner, name = ENGINES[engine]
    before = getattr(owner, name)
    with refused(), pytest.raises(RefusedEngine, match="write the engine yourself"):
        getattr(owner, name)()
    assert getattr(owner, name) is before


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


DUE = judge_traffic_and_overlap._bucket_bytes(on_ranks.cap_mb(SEED))
TOTAL = sum(DUE)
COUNT = message(8, dtype="Long")


def messages(sizes=DUE, count=(COUNT,), **other) -> list[dict]:
    """Messages of so many bytes, beside the number of tokens."""
    return [*count, *(message(n, **other) for n in sizes)]


def judged_account(check: str, sent: list[dict], wire=(None, None), first=None, **more):
    """`first`: what rank 0 sent, if not what the others did."""
    mine, reference = [{"collectives": first or sent}, *[{"collectives": sent}] * 3], [{"collectives": []}] * 4
    seen, of_reference = (Seen(wire_bytes=n) for n in wire)
    return judge_replies(
        check, {"record_step": mine, "seen": seen} | more, {"record_step": reference, "seen": of_reference}, seed=SEED
    )


def test_traffic_is_every_gradient_once_in_its_bucket():
    right = {
        "in order": judged_account("lab2.traffic", messages()),
        "in any order": judged_account("lab2.traffic", messages(sorted(DUE))),
        "a count of 4 bytes": judged_account("lab2.traffic", messages(count=[message(4)])),
        "as the system saw": judged_account("lab2.traffic", messages(), wire=(114, 100)),
    }
    assert {name: v.cause for name, v in right.items() if v.points != 2} == {}
    moved = [DUE[0] + 4, DUE[1] - 4, *DUE[2:]]
    said = {
        "each one pays the link's latency": judged_account("lab2.traffic", messages([*DUE, 256])),
        "2 have other sizes": judged_account("lab2.traffic", messages(moved)),
        "5 have other sizes": judged_account("lab2.traffic", messages([TOTAL - 4 * 256, *[256] * 4])),
        f"{TOTAL - 4:,} bytes were sent": judged_account("lab2.traffic", messages([DUE[0] - 4, *DUE[1:]])),
        f"{TOTAL + 4:,} bytes were sent": judged_account("lab2.traffic", messages([DUE[0] + 4, *DUE[1:]])),
        "under no_sync no gradient is sent": judged_account("lab2.traffic", messages(micro_batch=0)),
        "not in their own dtype": judged_account("lab2.traffic", messages(dtype="BFloat16")),
        "and all_gather was called": judged_account("lab2.traffic", messages(kind="all_gather")),
        "no gradient was sent": judged_account("lab2.traffic", [COUNT]),
        "rank 0: no gradient was sent": judged_account("lab2.traffic", messages(), first=[COUNT]),
        "all_reduce of 8 bytes, all_reduce of 4 bytes": judged_account(
            "lab2.traffic", messages(count=[COUNT, message(4)])
        ),
        "barrier of 0 bytes": judged_account("lab2.traffic", messages(count=[COUNT, message(0, kind="barrier")])),
        "all_reduce of 16 bytes": judged_account("lab2.traffic", messages(count=[message(16)])),
        "sent 1.16 times as much": judged_account("lab2.traffic", messages(), wire=(116, 100)),
        "sent 0.79 times as much": judged_account("lab2.traffic", messages(), wire=(79, 100)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


def test_overlap_is_half_of_the_bytes_in_time_and_nobody_who_waits_in_backward():
    def judged(early: float, *others_s: float):
        n_early = int(early * TOTAL)
        sent = [message(n_early), message(TOTAL - n_early, before_last_gradient=False)]

        def late_rank(seed, cap_mb):
            replies = [{"woke_s": 0.0, "last_gradient_s": t} for t in others_s]
            replies.insert(seed % 4, {"woke_s": 10.0, "last_gradient_s": 10.5})
            return replies

        return judged_account("lab2.overlap", sent, late_rank=late_rank)

    assert TOTAL % 2 == 0
    assert judged(0.5, 9.0, 9.0, 9.0).points == 2
    too_late = judged(0.499, 9.0, 9.0, 9.0)
    assert too_late.points == 0 and "made its last gradient" in too_late.cause
    one_waits = judged(0.9, 9.0, 9.0, 10.2)
    assert one_waits.points == 0 and "stands still" in one_waits.cause


def test_memory_may_be_two_fifths_of_the_gradients_above_ddps():
    size = judge_memory._gradient_bytes()

    def judged(peak: float, resident: float, seen: float | None = None, in_one_piece=(True, True)):
        """Of one rank, in gradients' sizes; the others hold what DDP holds, 5 and 2. `seen`: by the system, more."""

        def reply(peak, resident):
            peak = {"gradients": int(size), "parameters": int((peak - 1) * size)}
            resident = {"gradients": int(resident * size)}
            return {"peak": peak, "resident": resident, "moments": [peak], "in_one_piece": in_one_piece}

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
    for verdict, when in ((judged(5.41, 2), "at the peak of a step"), (judged(5, 2.41), "after the step")):
        assert verdict.points == 0
        assert verdict.cause.startswith(when)
        assert ": 0.4 times the gradients' size" in verdict.cause
    apart = judged(5, 2, in_one_piece=(True, False))
    assert apart.points == 0
    assert "the gradients of 1 of 2 buckets do not lie side by side" in apart.cause
    hidden = judged(5, 2, seen=4 * 0.61)
    assert hidden.points == 0
    assert "the system saw" in hidden.cause


@pytest.mark.parametrize("seed", range(3))
def test_with_each_drawn_size_buckets_from_the_first_parameter_on_have_other_sizes(seed):
    cap_bytes = int(on_ranks.cap_mb(seed) * on_ranks.MIB)
    parameters = list(on_ranks.build(0, 0, on_ranks.ACCOUNT_SHAPE["n_layers"]).parameters())
    last_first, first_first = (
        sorted(sum(p.nbytes for p in bucket) for bucket in assign_buckets(ps, cap_bytes, cap_bytes))
        for ps in (parameters, parameters[::-1])
    )
    assert last_first != first_first
