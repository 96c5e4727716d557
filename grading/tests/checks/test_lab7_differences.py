"""Lab 7's judges of what differs, of the experts and of resumed runs, on what ranks might reply, and what they draw."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from submissions import falls_short, judge_replies

from grading.checks.lab7_debug import experts_on_ranks, judge_differing_tensors, judge_resume
from grading.checks.lab7_debug.hang_evidence import MESHES, hang
from grading.checks.lab7_debug.tools_on_ranks import SHARDED, WHOLE, alter
from shardlab.tier import TIERS

SEEDS = range(12)


def drawn(seed: int) -> SimpleNamespace:
    """As much of a session as its draws need."""
    return SimpleNamespace(seed=seed, tier=TIERS["cpu"])


def judged_search(found=lambda altered: sorted({a[0] for a in altered}), n_bytes=512 * 10, rank=1):
    """One rank's answer; the others find what there is."""

    def search(altered, **_):
        right = sorted({a[0] for a in altered})
        replies = [{"found": right, "bytes": 0, "tensors": 10} for _ in range(4)]
        replies[rank] = {"found": found(altered), "bytes": n_bytes, "tensors": 10}
        return replies

    return judge_replies("lab7.differing", {"search": search})


def test_what_differs_is_found_by_every_rank_for_a_few_bytes():
    for rank in range(4):
        assert judged_search(rank=rank).points == 3
        few = judged_search(n_bytes=512 * 10 + 1, rank=rank)
        assert (few.points, "5,121 bytes are sent for 10 tensors" in few.cause) == (1.5, True)
        none = judged_search(lambda altered: [], rank=rank)
        assert (none.points, "the ranks return different lists" in none.cause) == (0, True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (lambda due: [*due, SHARDED[0]], "hold the same bits"),
        (lambda due: [*due, WHOLE[0]], "equal wherever it ought to be"),
        (lambda due: [*due, "no such"], "no tensor called 'no such'"),
        (lambda due: due[1:], "is not found"),
    ],
)
def test_too_many_and_too_few_differences_are_told(found, words):
    def search(altered, **_):
        return [{"found": found(sorted({a[0] for a in altered})), "bytes": 0, "tensors": 10}] * 4

    verdict = judge_replies("lab7.differing", {"search": search})
    assert (verdict.points, words in verdict.cause) == (0, True), verdict.cause


def test_bytes_are_altered_in_the_middle_and_at_either_parity():
    for seed in SEEDS:
        whole, mixed = list(judge_differing_tensors.searches(drawn(seed)).values())[1:]
        for name, _, how, where in (whole[2], mixed[0], mixed[1]):
            assert name in SHARDED or name == "count"
            assert how in ("even byte", "odd byte")
            assert 0 < where < 1
        assert {mixed[0][2], mixed[1][2]} == {"even byte", "odd byte"}


@pytest.mark.parametrize("how", ["even byte", "odd byte", "order"])
def test_an_alteration_changes_the_bits_where_it_says(how):
    for where, first in ((0, 0), (0.5, 9), (1, 19)):
        t = torch.arange(1, 21).bfloat16()
        before = t.view(torch.uint8).clone()
        alter(t, how, where)
        changed = (t.view(torch.uint8) != before).nonzero().flatten().tolist()
        assert changed
        if how == "order":
            assert sorted(t.tolist()) == list(range(1, 21))
        else:
            assert [i % 2 for i in changed] == [how == "odd byte"]
            assert abs(changed[0] // 2 - first) <= 1


def judged_experts(biases=None, rank=None, way=1.0, extra=(), seed=1):
    """Of one rank, or of all; the bytes of collectives besides FSDP's."""
    speed = experts_on_ranks.speed_of(seed)
    right = [[2 * speed, -speed], [0.0, speed], [3 * speed, 0.0]]
    fsdp = [["all_gather", 5000]] * 3

    def reply(spoilt):
        return {
            "biases": biases if spoilt and biases else right,
            "way": {"all": [way if spoilt else 1.0, 2.0 * (way if spoilt else 1.0)]},
            "collectives": fsdp + [["all_reduce", n] for n in (extra if spoilt else [])],
        }

    truths = {"by all": [{"biases": right, "way": {"all": [1.0, 2.0]}}] * 4}
    for decision, x in (("by rank 0", 0.5), ("alone", 0.6), ("mean of decisions", 0.7)):
        truths[decision] = [{"biases": [[x, x]] * 3}] * 4
    mine, plain = [reply(rank in (None, r)) for r in range(4)], [{"collectives": fsdp}] * 4
    reference = {"experts": plain, "experts_truth": lambda seed, decision: truths[decision]}
    return judge_replies("lab7.experts", {"experts": mine}, reference, seed)


def test_biases_follow_the_load_of_all_ranks_for_a_few_numbers():
    assert judged_experts().points == judged_experts(way=1.009).points == 3
    most = experts_on_ranks.N_LAYERS * experts_on_ranks.N_STEPS
    assert judged_experts(extra=[4096] * most, rank=1).points == 3
    speed = experts_on_ranks.speed_of(1)
    off = [[2 * speed, -speed], [0.0, 2 * speed], [3 * speed, 0.0]]
    said = {
        "the ranks hold different biases": (judged_experts(off, rank=3), 0),
        "do not follow the load of all tokens": (judged_experts(off), 0),
        "a bias changes by exactly speed": (judged_experts([[2.25 * speed, -speed], *off[1:]]), 0),
        "what rank 0 has seen alone": (judged_experts([[0.5, 0.5]] * 3), 0),
        "the load that it has seen itself": (judged_experts([[0.6, 0.6]] * 3), 0),
        "the mean of what ranks decide": (judged_experts([[0.7, 0.7]] * 3), 0),
        "all biases are still 0": (judged_experts([[0.0, 0.0]] * 3), 0),
        "2.00 times as far": (judged_experts(way=2.0), 0),
        "are not those of the same training": (judged_experts(way=float("nan"), rank=2), 0),
        f"{most + 1} collectives besides FSDP's": (judged_experts(extra=[4] * (most + 1), rank=1), 1.5),
        "4,097 bytes, and 4,096 are allowed": (judged_experts(extra=[4097], rank=1), 1.5),
    }
    assert falls_short(said) == {}


def test_steps_of_the_experts_have_different_numbers_of_micro_batches_and_all_planned_tokens():
    ranks = [experts_on_ranks.steps(1, rank, 4, "cpu") for rank in range(4)]
    for loads, *of_ranks in zip(experts_on_ranks.planned_loads(1), *ranks, strict=True):
        assert sum(len(x) for micro_batches in of_ranks for x, _ in micro_batches) == sum(loads)
    assert {tuple(map(len, of_ranks)) for of_ranks in zip(*ranks, strict=True)} == {(2,) * 4, (3,) * 4}


def test_planned_loads_have_the_mean_and_its_neighbours_in_every_step():
    for seed in SEEDS:
        for loads in experts_on_ranks.planned_loads(seed):
            assert sum(loads) == experts_on_ranks.MEAN_LOAD * experts_on_ranks.N_EXPERTS
            beyond = sorted(n - experts_on_ranks.MEAN_LOAD for n in loads)
            assert beyond[1:7] == [-2, -1, 0, 0, 1, 2]
            rounded = torch.tensor(loads, dtype=torch.float32).bfloat16().float()
            assert (rounded[[loads.index(experts_on_ranks.MEAN_LOAD + d) for d in (1, -1)]] == 600).any()


def judged_resume(check: str, which: str = "resumed", written: int = 0, sent: int = 0, rank: int = 1, **other):
    """One rank of the resumed run, or of the one that was saved and went on, replies something else."""
    state = {"the weights": [1.0, 2.0], "AdamW's counts of steps": [3.0, 4.0], "the random state": "a"}
    due = {
        "losses": [3.0, 2.9],
        "rates": [0.001, 0.002],
        "samples": [1, 4],
        "weights": {"all": [1.0, 2.0]},
        "average": {"all": [1.0, 2.0]},
        "state": state,
        "kept": state,
        "written": 0,
        "sent": 0,
    }
    mine = {"interrupted": [dict(due) for _ in range(4)], "resumed": None}
    mine["interrupted"][rank] |= {"written": written, "sent": sent} | (other if which == "interrupted" else {})
    n = 4 if check == "lab7.resume" else 2
    mine["resumed"] = [due | (other if (which, r) == ("resumed", rank) else {}) for r in range(n)]
    return judge_replies(check, mine, {"interrupted": [due] * 4})


@pytest.mark.parametrize("which", ["interrupted", "resumed"])
def test_a_resumed_run_is_the_one_that_was_never_stopped(which):
    ask = partial(judged_resume, "lab7.resume", which)
    assert ask().points == 3
    kept = {"the weights": [1.0, 2.1], "AdamW's counts of steps": [], "the random state": "b"}
    when = "after `save`" if which == "interrupted" else "after `load`"
    changed = f"{when}: the weights, AdamW's counts of steps, the random state of a rank."
    said = {
        "other samples are seen": (ask(samples=[1, 3]), 0),
        "a step's learning rate is": (ask(rates=[0.001, 0.0021]), 0),
        "the loss of step 1 afterwards is 3.0000001": (ask(losses=[3.0000001, 2.9]), 0),
        "the loss of step 2 afterwards is nan": (ask(losses=[3.0, float("nan")]), 0),
        "the weights is another one": (ask(weights={"all": [1.0, 2.0000001]}), 0),
        "the average of the weights is another": (ask(average={"all": [1.0, 2.0000001]}), 0),
        changed: (ask(losses=[3.1, 2.9], kept=kept), 0),
    }
    assert falls_short(said) == {}
    disturbs = "`save` disturbs the run that goes on"
    assert all((disturbs in v.cause) == (which == "interrupted") for v, _ in said.values())
    assert ["Not as before" in v.cause for v, _ in said.values()] == [False] * 6 + [True]


def test_on_fewer_ranks_a_resumed_run_is_right_up_to_rounding_and_every_rank_saves_its_part():
    ask = partial(judged_resume, "lab7.resharding")
    assert ask(losses=[3.0, 2.9 * 1.00009], weights={"all": [1.0, 2.0001]}).points == 2
    most, sent = int(0.6 * judge_resume.STATE_BYTES), int(0.2 * judge_resume.STATE_BYTES)
    assert ask(written=most, sent=sent).points == 2
    said = {
        "the loss of step 2 afterwards": (ask(losses=[3.0, 2.9 * 1.00011]), 0),
        "the weights is another one": (ask(weights={"all": [1.0, 2.0003]}), 0),
        "But largest file": (ask(written=most + 1), 1),
        "But collectives of `save` on a rank": (ask(sent=sent + 1), 1),
    }
    assert falls_short(said) == {}


def test_a_run_is_stopped_in_the_third_epoch_or_later_and_goes_on_into_another():
    epochs = [(stop * 12 - 1) // 84 for stop in judge_resume.STOPS]
    assert min(epochs) == 2
    assert len(set(epochs)) > 1
    assert any(
        (stop + judge_resume.MORE_STEPS) * 12 > 84 * (e + 1) for stop, e in zip(judge_resume.STOPS, epochs, strict=True)
    )


@pytest.mark.parametrize("mesh", MESHES)
def test_a_call_that_is_left_out_may_come_twice(mesh):
    for seed in range(10):
        h = hang(seed, "leaves out", mesh, twice=True)
        rank, _, seq = h.fault
        peer = next(m for a, members, *_ in h.records[rank] if a == "shard" for m in members if m != rank)
        calls = {n: call for a, _, n, call, _ in h.records[peer] if a == "shard"}
        assert calls[seq - 1] == calls[seq - 2] or calls[seq - 1] == calls[seq], (calls, seq)
