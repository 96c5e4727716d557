"""A search finds what looking at everything would find, keeps to what it was told, and says what it costs."""

from itertools import product

import pytest

from shardplan.api import figures_of, setup_of
from shardplan.search.strategies import MICRO_BATCHES, RECOMPUTE, Search, search
from shardplan.search.training_cost import affordable_gpus, cost
from shardsim.machines import machine

ALONE = {"tensor": 1, "pipeline": 1, "context": 1}  # data parallelism


@pytest.fixture(scope="module")
def found() -> Search:
    return search("8B", "dgx-h100", gpus=16, seq_len=8192, cross_entropy="fused", **ALONE)


def test_the_best_is_the_best_of_all(found):
    """Beside loops over everything, micro-batches that are too large among them."""
    layouts = [{"sharding": s} for s in ("DDP", "ZERO_1", "ZERO_2", "SHARD_GRAD_OP", "FULL_SHARD")]
    layouts[0]["gradient_as_bucket_view"] = True
    layouts += [{"sharding": s, "shard_size": 8} for s in ("SHARD_GRAD_OP", "FULL_SHARD")]
    plans = []
    for layout, recompute, micro_batch in product(layouts, RECOMPUTE, MICRO_BATCHES):
        choice = {**layout, "recompute": recompute, "micro_batch": micro_batch}
        plans.append(
            figures_of(setup_of("8B", "dgx-h100", 16, seq_len=8192, cross_entropy="fused", **choice), every_block=False)
        )
    fitting = [p for p in plans if p.fits == "yes"]
    assert {p.setup for p in found.fitting} == {p.setup for p in fitting}
    assert found.best.job_tokens_per_s == max(p.job_tokens_per_s for p in fitting)
    assert found.n_maybe == sum(p.fits == "maybe" for p in plans)


def test_the_fastest_come_first_and_all_of_them_fit(found):
    speeds = [p.job_tokens_per_s for p in found.fitting]
    assert speeds == sorted(speeds, reverse=True)
    assert {p.fits for p in found.fitting} == {"yes"}
    assert found.n_tried > len(found.fitting) + found.n_maybe


def test_the_front_is_what_nothing_smaller_is_as_fast_as(found):
    size = lambda p: p.memory.device_bytes[1]  # noqa: E731
    beaten = [
        p
        for p in found.fitting
        if any(q.speed.tokens_per_s >= p.speed.tokens_per_s and size(q) < size(p) for q in found.fitting)
    ]
    assert not set(map(id, beaten)) & set(map(id, found.front))
    assert len(found.front) > 2
    assert min(map(size, found.front)) == min(map(size, found.fitting))


def test_what_is_given_stays():
    found = search("8B", "dgx-h100", gpus=8, sharding="FULL_SHARD", micro_batch=2, recompute="full", tensor=2)
    strategies = [p.setup.strategy for p in found.fitting]
    assert strategies
    assert {(s.sharding, s.micro_batch, s.recompute, s.tensor) for s in strategies} == {("FULL_SHARD", 2, "full", 2)}


def test_a_global_batch_is_kept_to_the_sequence():
    found = search("1B", "dgx-h100", gpus=8, global_batch=96, **ALONE)
    for p in found.fitting:
        s = p.setup.strategy
        assert s.micro_batch * s.accumulation * p.setup.data_ranks // s.context == 96
    assert {p.setup.strategy.micro_batch for p in found.fitting} >= {1, 2, 4}
    assert not search("1B", "dgx-h100", gpus=8, global_batch=96, micro_batch=5).fitting


def test_other_parallelisms_are_tried_within_a_node_and_on_long_sequences():
    found = search("8B", "dgx-h100", gpus=16, seq_len=65_536, micro_batch=1, recompute="full", sharding="FULL_SHARD")
    strategies = [p.setup.strategy for p in found.fitting]
    assert {s.tensor for s in strategies} == {1, 2, 4, 8} and max(s.context for s in strategies) > 1
    short = search("8B", "dgx-h100", gpus=8, micro_batch=1, recompute="full", sharding="FULL_SHARD")
    assert {p.setup.strategy.context for p in short.fitting} == {1}
    assert max(p.setup.strategy.pipeline for p in short.fitting) == 8


def test_offload_is_tried_where_nothing_fits_without():
    without = search("8B", "dgx-h100", gpus=1, offload="none", **ALONE)
    assert not without.fitting
    found = search("8B", "dgx-h100", gpus=1, **ALONE)
    assert found.best and {p.setup.strategy.offload for p in found.fitting} == {"cpu"}
    assert found.n_tried > without.n_tried


def test_what_does_not_go_together_raises_at_once():
    with pytest.raises(ValueError, match="micro_batch=0"):
        search("8B", "dgx-h100", gpus=8, micro_batch=0)
    with pytest.raises(ValueError, match="shading.*sharding"):
        search("8B", "dgx-h100", gpus=8, shading="DDP")


def test_progress_sees_all_that_is_tried():
    seen = []

    def progress(groups):
        seen.extend(groups)
        return groups

    found = search("1B", "dgx-h100", gpus=8, progress=progress, **ALONE)
    assert sum(map(len, seen)) >= found.n_tried > 50


def test_what_a_training_costs(found):
    """15e12 tokens at so many a second; a GPU hour is an hour of one GPU."""
    costs = cost(found.best, 15e12, dollars_per_gpu_hour=2.5)
    assert costs.seconds == 15e12 / (found.best.speed.tokens_per_s * 16)
    assert costs.gpu_hours == pytest.approx(costs.seconds / 3600 * 16)
    assert costs.dollars == pytest.approx(2.5 * costs.gpu_hours)
    assert cost(found.best, 15e12).dollars is None


@pytest.mark.parametrize("budget, gpus", [(20, 8), (2.5, 1), (19, 7), (100, 40), (118, 40)])
def test_a_budget_buys_whole_nodes(budget, gpus):
    assert affordable_gpus(budget, 2.5, machine("dgx-h100")) == gpus


@pytest.mark.parametrize("budget, price, field", [(2, 2.5, "dollars_per_hour"), (2, 0, "dollars_per_gpu_hour")])
def test_a_budget_that_buys_nothing_names_the_field(budget, price, field):
    with pytest.raises(ValueError, match=f"^{field}="):
        affordable_gpus(budget, price, machine("dgx-h100"))


def test_experts_of_a_mixture_are_spread_over_1_8_and_64_ranks():
    still = {"tensor": 1, "pipeline": 1, "micro_batch": 1, "recompute": "full", "seq_len": 2048}
    found = search("qwen3-30b-a3b", "dgx-h100", gpus=16, **still)
    assert {p.setup.strategy.expert for p in found.fitting} == {1, 8}
    assert {p.setup.strategy.sharding for p in found.fitting if p.setup.strategy.expert > 1} <= {"ZERO_1", "FULL_SHARD"}
