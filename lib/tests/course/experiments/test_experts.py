"""Lesson 19's own cells, and what they are measured by: parity with one process, bytes, divisors, sleeping ranks."""

from functools import cache

import pytest
import torch
from lesson_answers import definitions

from shardcourse.experiments import experts
from shardcourse.experiments.experts import D, E, K, N, T
from shardlab import launch

QUIET = {"device": "cpu", "stream": False}


@cache
def lesson(*change: str) -> dict:
    return definitions("19_experts.ipynb", *change)


def steps(*change: str) -> list[experts.Step]:
    names = lesson(*change)
    return launch(experts.one_step, N, names["on_my_rank"], names["alone"], 0, **QUIET)


def test_four_ranks_equal_one_process_and_send_what_the_formula_says():
    found = steps()
    assert max(step.error for step in found) < 1e-14
    assert sum(step.received for step in found) == N * T * K
    for rank, step in enumerate(found):
        stay = sum(step.counts[rank * E // N : (rank + 1) * E // N])
        assert [sent for sent, _ in step.all_to_alls[1:3]] == [T * K * D * 8, step.received * D * 8]
        assert step.sent_bytes == 2 * (T * K + step.received - 2 * stay) * D * 8 + (N - 1) * E // N * 8


@pytest.mark.night
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return Exchange.apply(gradient, *ctx.back), None, None, None", "return gradient * 0, None, None, None"),
        ("self.experts(got[order], theirs.sum(0).tolist())", "self.experts(got, theirs.sum(0).tolist())"),
        ("index_copy(0, order, out)", "copy_(out)"),
        ("weight / weight.sum(-1, keepdim=True)", "weight / weight.sum(0, keepdim=True)"),
    ],
)
def test_a_planted_mistake_changes_a_gradient(old, new):
    try:
        error = max(step.error for step in steps(old, new))
    except Exception as problem:  # gradients of another shape
        error = float("shape" in str(problem))
    assert error > 1e-6


def test_experts_gradients_are_ep_times_too_large_without_the_right_divisor():
    names = lesson()
    cases = {"1 x 4": {"shape": (1, 4)}, "2 x 2": {"shape": (2, 2)}, "right": {"shape": (2, 2), "factor": N}}
    said = launch(experts.multiples, N, names["sharded"], names["alone"], 0, cases, **QUIET)[0]
    assert [words.split("experts ")[1][:4] for words in said.values()] == ["4.00", "2.00", "1.00"]
    assert all(words.startswith("dense 1.00") for words in said.values())


def test_one_all_reduce_of_squares_is_the_norm_of_one_process():
    found = launch(lesson()["norms"], N, **QUIET)
    assert all(ours == pytest.approx(right, rel=1e-12) for _, _, ours, right in found)
    assert len({f"{experts_only:.6f}" for _, experts_only, _, _ in found}) == 2


def test_a_rank_sleeps_for_its_own_rows_and_waits_for_the_busiest():
    found = launch(experts.slept_step, N, lesson()["on_my_rank"], 0, 2.0, 2e-4, **QUIET)
    busiest = max(received for received, _ in found)
    assert busiest > 1.5 * T * K
    assert all(seconds > 0.95 * busiest * 2e-4 for _, seconds in found)


def test_nodes_visited_are_those_of_the_formula():
    scores, visited = torch.rand(4000, 256, generator=torch.Generator().manual_seed(0)), lesson()["nodes_visited"]
    assert visited(scores) == pytest.approx(5.29, abs=0.05)
    assert visited(scores, limit=4) <= 4 and visited(scores, limit=2) == pytest.approx(2, abs=0.01)
