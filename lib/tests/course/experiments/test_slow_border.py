"""The arithmetic of lesson 10's slow border, and the tables that its lessons print."""

from dataclasses import replace

import pytest
from torch.distributed.fsdp import fully_shard

from shardcourse.experiments import slow_border
from shardcourse.experiments.planned import plan
from shardcourse.experiments.published import published_all_gathers


def one_copy(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def test_bytes_are_those_of_the_arithmetic():
    seen = slow_border.compare({"one copy": one_copy}, rounds=1)["one copy"]
    assert seen.left_bytes == pytest.approx((3 * slow_border.MODEL_BYTES - slow_border.ROOT_BYTES) * 3 / 4, rel=0.01)
    assert seen.held_bytes == pytest.approx(slow_border.MODEL_BYTES, rel=0.01)  # four copies over four ranks
    assert seen.step_s > 0.9 * slow_border.predicted_step().end_s


def test_a_fast_card_leaves_hybrid_nothing_to_gain():
    fast = replace(slow_border.CLUSTER, card_latency_s=0.0, card_bandwidth=80e6)
    steps = {
        (hybrid, c): slow_border.predicted_step(hybrid, cluster=c).end_s
        for hybrid in (0, 1)
        for c in (fast, slow_border.CLUSTER)
    }
    assert steps[1, slow_border.CLUSTER] < 0.9 * steps[0, slow_border.CLUSTER]
    assert steps[1, fast] > 0.95 * steps[0, fast]


def test_published_tables_are_those_that_were_not_fitted():
    rows = published_all_gathers()
    assert [(k, n_bytes >> 20) for k, n_bytes, *_ in rows] == [(k, n) for k in (1, 2, 4, 8) for n in (32, 8192)]
    assert all(0.5 < predicted / measured < 2 for k, _, measured, predicted in rows if k < 8)


def test_a_plan_has_seconds_and_gib():
    speed, peak = plan("8B", "dgx-h100", 32, recompute="full", seq_len=2048)
    assert speed.step_s > 0
    assert 5 < peak < 80
