"""Lab 11's judges alone: one process beside data parallelism, slips, bytes of a round, and limits."""

from itertools import pairwise

import pytest
import torch
from submissions import falls_short, judge_replies
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from grading.checks.lab11_slow_link import judge_link, judge_weights
from grading.checks.lab11_slow_link.model_samples_schedule import Setting, build, flat_weights, samples
from grading.checks.lab11_slow_link.on_ranks import project
from grading.checks.lab11_slow_link.truth import SLIPS, Alone
from grading.judge.tensor_projections import distance
from shardsim.network import Network

SEED = 1  # of `judge_replies`
KINDS = {"outer": judge_weights.outer_runs, "late": judge_weights.late_runs, "missed": judge_weights.missed_runs}


# One process


def test_h_of_1_without_outer_momentum_is_data_parallelism():
    """With SGD without momentum inside, as the text says."""
    run = Setting(5, 2, 2, "SGD", 6, 1, 1.0, 0.0)
    alone = Alone(run)
    for site in alone.sites:
        site.inner = torch.optim.SGD(site.model.parameters(), lr=0.02)
    found, model = alone.steps(), build(run.seed)
    for step in range(run.steps):
        parts = [samples(run, step, rank) for rank in range(4)]
        loss = sum(len(x) * model(x, y) for x, y in parts) / sum(len(x) for x, _ in parts)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        flat = flat_weights(model) - 0.02 * parameters_to_vector(gradients)
        vector_to_parameters(flat, model.parameters())
        for of_site in found[step]:
            torch.testing.assert_close(of_site, flat, rtol=1e-12, atol=1e-13)


def test_with_lr_1_and_no_momentum_a_round_ends_with_the_weighted_mean_of_the_weights():
    run = Setting(5, 3, 1, "AdamW", 4, 4, 1.0, 0.0)
    alone = Alone(run)
    for step in range(1, 5):
        alone._local(step)
    n = torch.tensor([site.samples for site in alone.sites], dtype=torch.float64)
    mean = n @ torch.stack([site.weights for site in alone.sites]) / n.sum()
    torch.testing.assert_close(Alone(run).steps()[3][0], mean, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_all_sites_end_with_the_same_weights(kind):
    for runs in KINDS[kind](3).values():
        for run in runs:
            last = Alone(run).steps()[-1]
            assert all(torch.equal(flat, last[0]) for flat in last)


@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_is_far_from_the_truth_somewhere(slip):
    runs = [run for draw in KINDS.values() for of_shape in draw(SEED).values() for run in of_shape]
    off = max(
        distance(wrong, right)
        for run in runs
        for a, b in [(judge_weights.projected(run, slip), judge_weights.projected(run))]
        for wrongs, rights in zip(a, b, strict=True)
        for wrong, right in zip(wrongs, rights, strict=True)
    )
    assert off > 5 * judge_weights.ROUNDED


# Weights


def replies_to(kind: str, change=lambda step, rank, flat: flat) -> dict:
    """What ranks reply that train as one process does, with a change of the weights."""

    def train(runs, words):
        n = Network.parse(words, 4).ranks_per_node
        replies = [[] for _ in range(4)]
        for run in (Setting(*run) for run in runs):
            run = run._replace(up=tuple(map(tuple, run.up)))
            start, steps = flat_weights(build(run.seed)), Alone(run).steps()
            for rank, reply in enumerate(replies):
                weights = [
                    project(change(i, rank, sites[rank // n] - start), run.seed) for i, sites in enumerate(steps)
                ]
                reply.append({"weights": weights})
        return replies

    return {"train": train}


def test_errors_are_allowed_up_to_the_tolerance():
    said = {}
    for factor, points, words in ((0.5, 4, "those of one process"), (2.0, 0, "rounded")):
        off = 1 + factor * judge_weights.TOLERANCE["float64"]
        changed = replies_to("outer", lambda step, rank, flat, off=off: off * flat)
        said[words] = judge_replies("lab11.outer", changed), points
    assert falls_short(said) == {}


def test_every_rank_and_every_step_is_looked_at():
    def on(where):
        return lambda step, rank, flat: 1.1 * flat if where(step, rank) else flat

    said = {
        "rank 3 is off by 0.1 of their change, and rank 2 of the same site is right": (
            on(lambda step, rank: rank == 3),
            0,
        ),
        "after step 5 the weights of rank 0 are off by 0.1 of their change": (on(lambda step, rank: step == 4), 0),
    }
    found = {w: (judge_replies("lab11.missed", replies_to("missed", change)), p) for w, (change, p) in said.items()}
    assert falls_short(found) == {}


def test_what_is_not_finite_or_does_not_move_is_named():
    said = {
        "are not finite": lambda step, rank, flat: flat * float("nan"),
        "have not changed": lambda step, rank, flat: 0 * flat,
    }
    found = {words: (judge_replies("lab11.late", replies_to("late", change)), 0) for words, change in said.items()}
    assert falls_short(found) == {}


# Draws


def test_every_draw_has_what_a_mistake_needs():
    for seed in range(40):
        for runs in judge_weights.outer_runs(seed).values():
            assert any(run.steps % run.H for run in runs) and any(run.H == 1 for run in runs)
            assert {run.optimizer for run in runs} == {"SGD", "AdamW"}
        for runs in judge_weights.late_runs(seed).values():
            assert all(0 < run.late < run.H for run in runs)
            assert 0 < runs[0].steps % runs[0].H < runs[0].late  # the last message is on its way at the end
            assert {run.optimizer for run in runs} == {"SGD", "AdamW"}
        for runs in judge_weights.missed_runs(seed).values():
            for run in runs:
                rounds = [set(run.up_at(k)) for k in range(run.steps // run.H)]
                assert all(before & now for before, now in pairwise([set(range(run.nodes)), *rounds]))
                assert any(len(up) < run.nodes for up in rounds)
            assert len(runs[1].up_at(runs[1].steps // runs[1].H - 1)) < runs[1].nodes  # one is down at the end


# The link


def test_bytes_of_a_round_follow_from_its_sites():
    run = Setting(0, 4, 1, "SGD", 5, 2, 0.7, 0.5, 0, ((0, 1, 2, 3), (1, 2, 3)))
    due = judge_link.rounds_due(run, 1000)
    assert [*due] == [1, 3, 5]
    assert due[1] == ([0, 1, 2, 3], 6000, 1500 + judge_link.SPARE_BYTES)
    assert due[3] == ([1, 2, 3], 4000, pytest.approx(4000 / 3 + judge_link.SPARE_BYTES))
    assert due[5] == ([0, 1, 2, 3], 8000, 3500 + judge_link.SPARE_BYTES)  # site 0 is back
    whole = run._replace(steps=4, up=())
    assert [*judge_link.rounds_due(whole, 1000)] == [1, 3]  # `finish` sends nothing


def message(n_bytes: int, at_s: float, kind: str = "all_reduce", ranks=(0, 2)) -> dict:
    return {"kind": kind, "bytes": n_bytes, "ranks": ranks, "issued_s": at_s, "finished_s": at_s}


def fault_of(messages: dict[int, list[dict]]) -> str:
    """The fault of a run of two rounds on 2x2 with drifts of 10,000 bytes; messages by rank. A step takes 1 s."""
    run, network = Setting(0, 2, 2, "SGD", 4, 2, 0.7, 0.5), Network.parse("2x2 nodes, 1 GB/s inside, 1 GB/s between", 4)
    ends_s = [1.0, 2.0, 3.0, 4.0]
    replies = [{"record": messages.get(rank, []), "ends_s": ends_s, "bytes": 10_000} for rank in range(4)]
    return judge_link._of_run(replies, run, network)[1]


def test_bytes_have_limits_on_both_sides():
    def rounds(n_bytes, times=(1.5, 3.5)):
        return [message(n_bytes, at_s) for at_s in times]

    both = {rank: rounds(10_000) for rank in (0, 2)}
    assert fault_of(both) == ""
    assert fault_of({rank: rounds(10_500) for rank in (0, 2)}) == ""
    assert "times what is allowed" in fault_of({rank: rounds(10_600) for rank in (0, 2)})
    assert "are needed" in fault_of({rank: rounds(9_800) for rank in (0, 2)})
    assert "are needed" in fault_of({})
    assert "1.5" in fault_of(
        {rank: [message(10_600, at_s, ranks=(0, 1, 2, 3)) for at_s in (1.5, 3.5)] for rank in range(4)}
    )
    peers = {rank: [message(10_000, at_s, ranks=(rank % 2, rank % 2 + 2)) for at_s in (1.5, 3.5)] for rank in range(4)}
    assert "1.9" in fault_of(peers)
    assert "ends no round" in fault_of({rank: rounds(10_000, (1.5, 2.5)) for rank in (0, 2)})
    assert "ends no round" in fault_of({rank: rounds(10_000, (1.5, 3.5, 4.5)) for rank in (0, 2)})


def test_a_send_counts_once_and_in_full():
    run, network = Setting(0, 2, 2, "SGD", 2, 2, 0.7, 0.5), Network.parse("2x2 nodes, 1 GB/s inside, 1 GB/s between", 4)
    replies = [{"record": [], "ends_s": [1.0, 2.0], "bytes": 1} for _ in range(4)]
    replies[1]["record"] = [message(700, 1.5, "send", (1, 2)), message(50, 1.5, "send", (1, 0))]
    assert judge_link.sent_by_step(replies, run, network) == [[0, 0], [700, 0], [0, 0]]
    assert judge_link.sent_by_step(replies, run, network, "in") == [[0, 0], [0, 700], [0, 0]]


def test_what_goes_through_the_store_leaves_the_site_and_carries_no_drift():
    run, network = Setting(0, 2, 2, "SGD", 2, 2, 0.7, 0.5), Network.parse("2x2 nodes, 1 GB/s inside, 1 GB/s between", 4)
    replies = [{"record": [], "ends_s": [1.0, 2.0], "bytes": 1} for _ in range(4)]
    replies[3]["record"] = [message(700, 0.5, "store", (3,))]
    assert judge_link.sent_by_step(replies, run, network) == [[0, 700], [0, 0], [0, 0]]
    assert judge_link.sent_by_step(replies, run, network, "in") == [[0, 0], [0, 0], [0, 0]]
    by_store = {rank: [message(10_000, at_s, "store", (rank,)) for at_s in (1.5, 3.5)] for rank in (0, 2)}
    assert "0 bytes cross in step 2, and 20000 are needed" in fault_of(by_store)
    small = {rank: [message(9_900, 1.5), message(200, 1.6, "store", (rank,)), message(9_900, 3.5)] for rank in (0, 2)}
    assert fault_of(small) == ""
    large = {rank: [message(9_900, 1.5), message(900, 1.6, "store", (rank,)), message(9_900, 3.5)] for rank in (0, 2)}
    assert "times what is allowed" in fault_of(large)


def overlap_fault(ends_s: list[float]) -> str:
    class Session:
        seed = 0

        def order(self, check, drill, **arguments):
            return [[{"ends_s": ends_s}]] * 4

    return judge_link._overlap(Session(), "lab11.link")


def test_only_a_step_that_applies_may_take_as_long_as_a_message():
    """H = 4, late = 3: messages are sent in steps 4 and 8, and applied in 7 and, by `finish`, after step 10."""
    quick = [0.01 * i for i in range(1, 11)]

    def slow_in(step):
        return [t + (1.5 if i >= step else 0.0) for i, t in enumerate(quick, 1)]

    assert overlap_fault(quick) == ""
    assert overlap_fault(slow_in(7)) == ""
    for step in (4, 5, 6, 8, 9, 10):
        assert f"the steps {4 if step < 7 else 8} to" in overlap_fault(slow_in(step)), step
