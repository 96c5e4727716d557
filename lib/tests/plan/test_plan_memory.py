"""The plan's arithmetic: what is held between steps, what comes and goes, and what follows from more ranks or less.

That real ranks hold as much is in test_plan_measured.
"""

from dataclasses import replace
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.model import ModelConfig, Transformer, preset
from shardplan.formulas import Expected, units_of
from shardplan.memory import allocator, memory_plan, offload, states
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.stage_parameters import nf4_bytes_each, stages
from shardplan.strategy import OPTIMIZERS, PRECISIONS, Strategy
from shardsim.machines import machine

UNEVEN = ModelConfig(257, 72, 3, 4, 2, 190, 256)
SHARDINGS = ("DDP", "DDP+ZERO_1", "ZERO_1", "ZERO_2", "SHARD_GRAD_OP", "FULL_SHARD")


def setup(config: ModelConfig | str = "8B", ranks: int = 8, **strategy) -> Setup:
    shape = Shape.of("a model", preset(config) if isinstance(config, str) else config)
    return Setup(shape, machine("dgx-h100"), ranks, Strategy(**{"seq_len": 256} | strategy))


def held(s: Setup) -> dict[str, float]:
    (stage,) = stages(s)
    optimizer_states = sum(term.n_bytes for term in states.optimizer_states(s, stage))
    return {
        "parameters": states.parameters(s, stage).n_bytes,
        "gradients": states.gradients(s, stage).n_bytes,
        "optimizer_states": optimizer_states,
    }


# Between steps


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_states_are_those_of_the_formulas_that_measurements_are_held_against(sharding, ranks):
    """measure.strategies.Expected bounds what a rank may hold; buckets of ZeRO may be padded by an element a rank."""
    s = setup(UNEVEN, ranks, sharding=sharding, precision="fp32", bucket_cap_mb=0.05)
    with torch.device("meta"):
        model = Transformer(UNEVEN)
    expected = Expected(sharding, units_of(model, model.blocks), ranks)
    for name, n_bytes in held(s).items():
        assert n_bytes <= getattr(expected, name) + 1024, name
        assert n_bytes >= 0.9 * (getattr(expected, name) - expected._largest_parameter * 2), name


def test_padding_is_that_of_chunks_of_rows():
    (stage,) = stages(setup(UNEVEN, 4))
    embedding = next(w for w in stage.root if w.name == "embedding.weight")
    assert embedding.shard_numel(4) == ceil(257 / 4) * 72


@pytest.mark.parametrize(
    ("sharding", "bytes_a_parameter"),
    [("DDP", 16), ("ZERO_1", 4 + 12 / 64), ("ZERO_2", 2 + 14 / 64), ("FULL_SHARD", 16 / 64)],
)
def test_the_zero_papers_16_bytes_a_parameter(sharding, bytes_a_parameter):
    """Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes, and what each stage divides by N."""
    s = setup("8B", 64, sharding=sharding, precision="bf16-master")
    total = sum(held(s).values())
    assert total == pytest.approx(bytes_a_parameter * s.shape.n_params, rel=0.001)


@pytest.mark.parametrize(
    "optimizer", sorted(OPTIMIZERS.keys() - {"muon"})
)  # has two kinds of states: see test_plan_muon
@pytest.mark.parametrize("precision", PRECISIONS)
def test_states_of_optimizers_and_precisions(optimizer, precision):
    s = setup("8B", 1, sharding="DDP", optimizer=optimizer, precision=precision)
    count, each = OPTIMIZERS[optimizer]
    expected = (each or s.strategy.bytes.states) * count + s.strategy.bytes.master
    assert held(s)["optimizer_states"] == pytest.approx(expected * s.shape.n_params, rel=0.001, abs=4096)


def test_nf4_weighs_what_the_librarys_own_does():
    quantised = pytest.importorskip("shardnext.qlora")
    weight = quantised.NF4Weight(torch.ones(1024, 1024))
    assert nf4_bytes_each(4) * 2**20 == sum(p.nbytes for p in weight.parameters())


def test_qlora_trains_two_thin_matrices_beside_each_of_a_blocks():
    s = setup("8B", 1, sharding="DDP", lora_rank=16, base_4bit=True, precision="bf16")
    (stage,) = stages(s)
    matrices = [shape for shape in s.shape.block().values() if len(shape) == 2]
    thin = 16 * sum(rows + columns for rows, columns in matrices) * 32
    assert sum(w.numel for w in states.trained(stage)) == thin
    assert held(s)["gradients"] == 2 * thin
    in_4_bits = 32 * sum(rows * columns for rows, columns in matrices)
    as_before = s.shape.n_params - in_4_bits  # vocabulary and norms
    assert held(s)["parameters"] == pytest.approx(nf4_bytes_each(2) * in_4_bits + 2 * (as_before + thin))


def test_tensor_parallel_ranks_divide_what_products_use_and_copy_the_norms():
    whole, eighth = setup("8B", 8, precision="fp32"), setup("8B", 64, precision="fp32", tensor=8)
    (a,), (b,) = stages(whole), stages(eighth)
    for one, other in zip(a.weights, b.weights, strict=True):
        assert one.numel == other.numel * (1 if len(one.shape) == 1 else 8), one.name


def test_a_pipelines_first_stage_has_the_embedding_and_most_micro_batches_in_flight():
    first, last = stages(setup("70B", 32, pipeline=4, accumulation=8))
    assert (first.n_blocks, first.in_flight, last.in_flight) == (20, 4, 1)
    assert [w.name for w in first.root] == ["embedding.weight"]
    assert [w.name for w in last.root] == ["norm.weight", "output.weight"]


# Over a step


def parts_of(s: Setup) -> list[str]:
    return list(dict.fromkeys(moment.part for moment in memory_plan(s).moments))


def test_moments_come_in_the_order_of_a_step():
    forward = ["forward of the embedding", *(f"forward of block {i}" for i in (1, 2, 3)), "forward of the output layer"]
    backward = [part.replace("forward", "backward") for part in reversed(forward)]
    for sharding in SHARDINGS:
        assert parts_of(setup(UNEVEN, 2, sharding=sharding, precision="fp32")) == [*forward, *backward, "optimizer"]


def test_the_peak_is_the_fullest_moment_and_a_moment_the_sum_of_its_terms():
    plan = memory_plan(setup("8B", 8, seq_len=4096))
    assert plan.allocated_bytes == max(m.n_bytes for m in plan.moments) == sum(t.n_bytes for t in plan.peak.terms)
    assert sum(plan.peak.by_category().values()) == pytest.approx(plan.allocated_bytes)
    assert all(term.n_bytes > 0 and term.words for moment in plan.moments for term in moment.terms)


def test_with_a_large_vocabulary_and_recomputation_the_logits_are_the_peak():
    plan = memory_plan(setup("1B", 64, seq_len=8192, micro_batch=4, recompute="full"))
    assert "output layer" in plan.peak.part
    largest = sorted(plan.peak.terms, key=lambda term: term.n_bytes)[-2:]
    assert all("B T V in 32 bits" in term.words for term in largest)  # log-probabilities, and the logits' gradient


def test_equal_blocks_share_terms():
    few, many = (memory_plan(setup(preset("8B", n_layers=n))) for n in (6, 48))
    assert max(len(m.terms) for m in many.moments) == max(len(m.terms) for m in few.moments)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("changes", [{}, {"accumulation": 3}, {"recompute": "full", "recompute_every": 5}])
def test_the_ends_of_a_deep_model_are_enough_for_the_peak(sharding, changes):
    s = setup(preset("1M", n_layers=40), 4, sharding=sharding, precision="fp32", bucket_cap_mb=1.0, **changes)
    all_blocks, ends = memory_plan(s), memory_plan(s, every_block=False)
    assert ends.allocated_bytes == all_blocks.allocated_bytes
    assert ends.reserved_bytes == all_blocks.reserved_bytes
    assert sharding == "ZERO_2" or len(ends.moments) < len(all_blocks.moments) / 2


def test_a_plan_does_not_depend_on_those_made_before():
    """Activations are shared between setups that have the same ones, and only between those."""
    choices = [
        {},
        {"recompute": "full"},
        {"sharding": "DDP"},
        {"micro_batch": 2},
        {"precision": "fp32"},
        {"compile": True},
    ]
    fresh = [memory_plan(setup(seq_len=300 + i, **c)).allocated_bytes for i, c in enumerate(choices)]
    again = [memory_plan(setup(seq_len=300 + i, **c)).allocated_bytes for i, c in reversed([*enumerate(choices)])]
    assert again[::-1] == fresh


# What follows from more or less of something


@given(
    ranks=st.sampled_from([2, 4, 8]),
    micro_batch=st.integers(1, 3),
    seq_len=st.integers(4, 64),
    precision=st.sampled_from(["fp32", "bf16-mixed"]),
    sharding=st.sampled_from(["SHARD_GRAD_OP", "FULL_SHARD"]),
)
@settings(max_examples=30, deadline=None)
def test_more_of_it_takes_more(ranks, micro_batch, seq_len, precision, sharding):
    s = setup(UNEVEN, ranks, micro_batch=micro_batch, seq_len=seq_len, precision=precision, sharding=sharding)
    peak = memory_plan(s).allocated_bytes

    def other(**changes) -> float:
        return memory_plan(replace(s, strategy=replace(s.strategy, **changes))).allocated_bytes

    assert other(micro_batch=micro_batch + 1) > peak
    assert other(seq_len=seq_len + 1) > peak
    assert other(recompute="full") <= peak
    assert other(accumulation=2, accumulate_unsharded=True) >= other(accumulation=2) >= peak
    assert other(sharding="SHARD_GRAD_OP") >= other(sharding="FULL_SHARD")
    assert other(wrap="whole") >= peak * 0.999
    assert memory_plan(replace(s, world_size=2 * ranks)).allocated_bytes < peak


def test_hybrid_holds_what_so_few_ranks_would():
    assert memory_plan(setup(ranks=64, shard_size=8)).allocated_bytes == memory_plan(setup(ranks=8)).allocated_bytes


def test_the_kernel_of_the_optimizer_decides_what_its_step_takes_for_the_moment():
    def temporaries(kernel: str) -> float:
        s = setup("8B", 8, sharding="DDP", precision="fp32", optimizer_kernel=kernel)
        return memory_plan(s).moments[-1].by_category()["temporaries"]

    n, largest, before = preset("8B").n_params, 128_256 * 4096, 4096
    assert temporaries("fused") == 0
    assert temporaries("foreach") == 4 * n
    assert temporaries("forloop") == 4 * (2 * largest + before)  # the output layer comes after a norm


# Beside the device


def test_offload_moves_states_to_the_host_and_nothing_else_grows():
    here, away = (memory_plan(setup("8B", 8, offload=where, seq_len=2048)) for where in ("none", "cpu"))
    resident = held(setup("8B", 8))
    assert away.host_bytes == pytest.approx(sum(resident.values()))
    assert here.host_bytes == here.nvme_bytes == 0
    assert here.allocated_bytes - away.allocated_bytes > 0.9 * (sum(resident.values()) - resident["gradients"])
    for moment in away.moments:
        assert not any(t.category in ("parameters", "optimizer_states", "gradients") for t in moment.terms), moment.name


@pytest.mark.parametrize("sharding", ["ZERO_1", "ZERO_2", "NONE"])
def test_zero_offload_has_gradients_on_the_device_only_until_they_are_sent(sharding):
    """Ren et al. 2021: 2 bytes a parameter stay, and hence 13B parameters on a V100 of 32 GB."""
    s = setup("1B", 1, sharding=sharding, precision="bf16-master", offload="cpu", bucket_cap_mb=25.0)
    largest = 2 * 128_256 * 2048  # bytes of a gradient, in a bucket of its own
    for moment in memory_plan(s).moments:
        by = moment.by_category()
        assert by["parameters"] == 2 * s.shape.n_params
        assert by["optimizer_states"] == 0
        assert by["gradients"] + by["buckets"] <= 2 * largest + 2 * 25 * 2**20


def test_nvme_takes_the_states_and_leaves_gradients_and_two_buffers_on_the_host():
    s = setup("8B", 8, offload="nvme")
    (stage,) = stages(s)
    resident, (host_bytes, nvme_bytes) = held(s), offload.away(s, stage)
    assert nvme_bytes == pytest.approx(resident["parameters"] + resident["optimizer_states"])
    assert resident["gradients"] < host_bytes < resident["gradients"] + nvme_bytes


def test_reserved_is_at_least_what_each_streams_pool_holds_at_its_fullest():
    """Gradients are in a pool of their own under FSDP, and count even when the peak lies before them."""
    plan = memory_plan(setup("8B", 8, seq_len=8192))
    low, high = plan.reserved_bytes
    gradients = held(setup("8B", 8))["gradients"]
    assert plan.peak.by_category()["gradients"] < 0.1 * gradients
    assert low >= plan.allocated_bytes + 0.9 * gradients
    assert high == pytest.approx(allocator.WORST * low)


def test_without_streams_of_their_own_there_is_one_pool():
    plan = memory_plan(setup("1B", 8, sharding="DDP", precision="bf16-autocast"))
    assert plan.reserved_bytes[0] == pytest.approx(plan.allocated_bytes, abs=2 * allocator.SEGMENT_BYTES)


def test_each_group_of_ranks_that_talk_has_a_communicator():
    assert allocator.communicators(setup(ranks=1, sharding="NONE")) == 0
    assert allocator.communicators(setup(ranks=8)) == 1
    assert allocator.communicators(setup(ranks=64, shard_size=8)) == 2
    assert allocator.communicators(setup("70B", 256, shard_size=8, tensor=8, pipeline=2)) == 4
