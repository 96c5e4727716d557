"""Bytes on links in closed form: equal to `measure.strategies`, real ranks, the simulated network, counts by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.plan_ranks import batch, build, step
from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset
from shardplan.formulas import Expected, units_of
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardplan.strategy import Strategy
from shardplan.traffic import bytes_by_link, sends
from shardplan.traffic.groups import NAMES, ends, group
from shardsim.machines import machine
from shardsim.network import Network

# Sizes that 4 ranks do not divide, so that padding shows
TINY = preset("1M", vocab_size=257, dim=40, n_heads=4, n_kv_heads=2, hidden_dim=90, n_layers=3)
PAIRS = replace(machine("dgx-h100"), name="nodes of two", gpus_per_node=2, nics_per_node=2)
FSDP = ("FULL_SHARD", "SHARD_GRAD_OP")


def tiny(world_size: int = 4, on=PAIRS, config=TINY, **strategy) -> Setup:
    options = {"precision": "fp32", "seq_len": 16} | strategy
    return Setup(Shape.of("tiny", config), on, world_size, Strategy(**options))


def total(setup: Setup) -> float:
    return sum(s.bytes for s in sends(setup))


def of(setup: Setup, *groups: str) -> float:
    return sum(s.bytes for s in sends(setup) if s.group.name in groups)


# ---------------------------------------------------------------------------------------------------- data parallelism


@pytest.mark.parametrize("sharding", ["DDP", "DDP+ZERO_1", "ZERO_1", "ZERO_2", *FSDP])
@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_equals_what_the_probes_expect(sharding, world_size, tied):
    config = replace(TINY, tied=tied)
    with torch.device("meta"):
        model = Transformer(config)
    expected = Expected(sharding, units_of(model, model.blocks), world_size)
    assert total(tiny(world_size, sharding=sharding, config=config)) == pytest.approx(expected.wire_bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [
        ("bf16-mixed", {"param_dtype": torch.bfloat16}),
        ("bf16-mixed-bf16-reduce", {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}),
        ("bf16-autocast", {}),
    ],
)
@pytest.mark.parametrize("shard_size", [None, 2])
def test_precision_and_replicas(precision, dtypes, shard_size):
    with torch.device("meta"):
        model = Transformer(TINY)
    for sharding in FSDP:
        expected = Expected(sharding, units_of(model, model.blocks), 4, shard_size, **dtypes)
        found = total(tiny(precision=precision, sharding=sharding, shard_size=shard_size))
        assert found == pytest.approx(expected.wire_bytes, rel=1e-12), sharding


ON_RANKS = [
    {"sharding": "DDP"},
    {"sharding": "DDP", "accumulation": 3},
    {"sharding": "DDP", "accumulation": 3, "accumulate_unsharded": True},
    {"sharding": "DDP+ZERO_1"},
    {"sharding": "ZERO_1", "accumulation": 2},
    {"sharding": "ZERO_2", "accumulation": 2},
    {"sharding": "ZERO_2", "accumulation": 2, "accumulate_unsharded": True},
    *({"sharding": sharding} for sharding in FSDP),
    *({"sharding": sharding, "accumulation": 2} for sharding in FSDP),
    {"sharding": "FULL_SHARD", "accumulation": 3, "accumulate_unsharded": True},
    {"sharding": "FULL_SHARD", "wrap": "whole", "accumulation": 2},
    {"sharding": "FULL_SHARD", "recompute": "full"},
    {"sharding": "FULL_SHARD", "precision": "bf16-mixed"},
]
HYBRID = [{"sharding": sharding, "shard_size": 2, "accumulation": 2} for sharding in FSDP]


def sent_by_ranks(options: list[dict], shards: int | None) -> list[float]:
    """Bytes that this rank sends in the second step of each; of a hybrid mesh, kind by kind over its own groups."""
    found = []
    for strategy in options:
        setup = tiny(**strategy)
        engine, data = build(setup), batch(setup)
        step(setup, engine, *data)
        with record_traffic() as traffic:
            step(setup, engine, *data)
        if shards is None:
            found.append(traffic.wire_bytes(setup.world_size))
        else:
            within = sum(traffic_of(traffic, ("all_gather", "reduce_scatter"), shards))
            found.append(within + sum(traffic_of(traffic, ("all_reduce",), setup.world_size // shards)))
    return found


def traffic_of(traffic, kinds: tuple[str, ...], group_size: int):
    from shardlab.measure.traffic import wire_bytes

    return (wire_bytes(c, group_size) for c in traffic.collectives if c.kind in kinds)


def test_equals_what_real_ranks_send():
    """torch's DDP, FSDP2 and ZeroRedundancyOptimizer, and our ZeRO: to the byte but for scalars, tables and padding."""
    by_rank = launch(sent_by_ranks, 4, ON_RANKS, None, stream=False)
    for strategy, *found in zip(ON_RANKS, *by_rank, strict=True):
        assert found == pytest.approx([total(tiny(**strategy))] * 4, rel=2e-3), strategy


def test_equals_what_a_hybrid_mesh_sends():
    by_rank = launch(sent_by_ranks, 4, HYBRID, 2, stream=False)
    for strategy, *found in zip(HYBRID, *by_rank, strict=True):
        assert found == pytest.approx([total(tiny(**strategy))] * 4, rel=2e-3), strategy


def test_zero_paper():
    """Section 7: stages 1 and 2 send as much as DDP, stage 3 half more, but for the root's second gather."""
    config = preset("1M", n_layers=100)  # every dim 0 divides by 64
    sent = {s: total(tiny(64, sharding=s, config=config)) for s in ("DDP", "ZERO_1", "ZERO_2", *FSDP)}
    for strategy, ratio in {"ZERO_1": 1, "ZERO_2": 1, "SHARD_GRAD_OP": 1, "FULL_SHARD": 1.5}.items():
        assert sent[strategy] == pytest.approx(ratio * sent["DDP"], rel=2e-3), strategy


# ---------------------------------------------------------------------------------------------- which link carries it


@settings(deadline=None)
@given(nodes=st.sampled_from([1, 2, 3, 4]), k=st.sampled_from([1, 2, 4]), sharding=st.sampled_from(["DDP", *FSDP]))
def test_between_nodes_as_the_simulated_network_has_it(nodes, k, sharding):
    """`network` sends every message of every round: what leaves all nodes, over all ranks."""
    on = replace(PAIRS, gpus_per_node=k, nics_per_node=k)
    setup = tiny(nodes * k, on, sharding=sharding, shard_size=None)
    network = Network(nodes, k, on.inside, on.between, nics_per_node=k)
    between = inside = 0.0
    for send in sends(setup):
        by_link = network.bytes_by_link(send.kind, send.full_bytes, range(nodes * k)) if send.group.size > 1 else {}
        between += send.times * sum(n for (kind, _, way), n in by_link.items() if (kind, way) == ("card", "out"))
        inside += send.times * sum(n for (kind, _, way), n in by_link.items() if (kind, way) == ("port", "out"))
    found = bytes_by_link(setup)
    assert found["between"] * nodes * k == pytest.approx(between, rel=1e-9)
    assert found["inside"] * nodes * k == pytest.approx(inside, rel=1e-9)


def test_hybrid_keeps_parameters_inside_the_node():
    """Between the nodes there is only an all_reduce of a shard: 2 (m-1)/m of the gradients' 1/k."""
    hybrid, flat = (bytes_by_link(tiny(8, shard_size=size)) for size in (2, None))
    gradients = sum(s.full_bytes * s.times for s in sends(tiny(8, shard_size=2)) if s.kind == "reduce_scatter")
    assert hybrid["between"] == pytest.approx(2 * (4 - 1) / 4 * gradients / 2)
    assert hybrid["between"] < flat["between"]


def test_groups_of_a_mesh():
    """Tensor-parallel ranks are neighbours; shards are as far apart as a tensor-parallel group is wide."""
    setup = Setup(Shape.of("405B", preset("405B")), machine("dgx-h100"), 512, Strategy(tensor=8, pipeline=8, context=2))
    found = {name: (g := group(setup, name)).size and (g.nodes, g.ranks_per_node, g.cards) for name in NAMES}
    assert found == {
        "tensor": (1, 8, 8),
        "context": (2, 1, 1),
        "expert": (1, 1, 1),
        "same experts": (8, 1, 1),
        "shard": (8, 1, 1),
        "replicate": (1, 1, 1),
        "data": (8, 1, 1),
        "pipeline": (8, 1, 1),
    }
    hybrid = Setup(Shape.of("8B", preset("8B")), machine("dgx-h100"), 32, Strategy(tensor=2, shard_size=2))
    shard, replicate = group(hybrid, "shard"), group(hybrid, "replicate")
    assert (shard.nodes, shard.ranks_per_node, shard.cards) == (1, 2, 2)
    assert (replicate.nodes, replicate.ranks_per_node, replicate.cards) == (4, 2, 2)  # every fourth rank


# ---------------------------------------------------------------------------------------------- the other parallelisms


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_tensor_parallel_by_hand(sequence_parallel):
    """A block sends four all_reduces' bytes of B T D; embedding and output layer together two. Of 4 ranks: (4-1)/4."""
    options = {"tensor": 4, "micro_batch": 2, "accumulation": 3, "sequence_parallel": sequence_parallel}
    whole = 2 * 16 * 40 * 4  # B T D in fp32
    config = replace(TINY, vocab_size=256, hidden_dim=96, n_kv_heads=4)
    expected = 3 * (3 * 4 + 2) * 2 * (3 / 4) * whole
    assert of(tiny(on=machine("dgx-h100"), config=config, **options), "tensor") == pytest.approx(expected)


def test_recomputation_repeats_forward_but_its_last_message():
    options = {"tensor": 2, "config": replace(TINY, vocab_size=256)}
    once, again, every_third = (
        of(tiny(**options, **o), "tensor")
        for o in ({}, {"recompute": "full"}, {"recompute": "full", "recompute_every": 3})
    )
    one = 16 * 40 * 4 / 2  # of an all_gather or a reduce_scatter
    assert again - once == pytest.approx(3 * 3 * one)
    assert every_third - once == pytest.approx(1 * 3 * one)


def test_gathering_again_for_the_weights_gradients():
    """Two all_gathers more a block, which nothing waits for. Source: Korthikanti et al. 2022, section 4.2.2."""
    plans = [tiny(tensor=2, config=replace(TINY, vocab_size=256), gather_again=again) for again in (False, True)]
    once, again = (of(plan, "tensor") for plan in plans)
    assert again - once == pytest.approx(3 * 2 * 16 * 40 * 4 / 2)
    once_s, again_s = (speed_plan(plan).parts_s["exposed communication"] for plan in plans)
    assert once_s == again_s


def test_context_parallel_by_hand():
    """Keys and values of T/4 positions pass 3 neighbours; backward theirs and their gradients': three times in all."""
    setup = tiny(context=4, micro_batch=2, accumulation=2)
    keys_and_values = 2 * 2 * (16 / 4) * (2 * 10) * 4  # K and V, B, T/c, kv heads, fp32
    assert of(setup, "context") == pytest.approx(2 * 3 * 3 * 3 * keys_and_values)  # micro-batches, blocks, passes, hops


@pytest.mark.parametrize(("stages", "messages"), [(2, 1), (3, 2)])
def test_pipeline_by_hand(stages, messages):
    setup = tiny(2 * stages, pipeline=stages, accumulation=4)
    assert of(setup, "pipeline") == 4 * messages * 16 * 40 * 4


@pytest.mark.parametrize(("stages", "nodes"), [(2, 1), (4, 2)])
def test_the_tied_matrix_of_a_pipeline_is_summed_between_its_ends(stages, nodes):
    """257 x 40 in float32, on one GPU a stage: an all_reduce of two ranks sends its gradient's bytes once."""
    for tied, due in ((True, 257 * 40 * 4), (False, 0)):
        setup = tiny(
            stages, config=replace(TINY, tied=tied, n_layers=4), pipeline=stages, accumulation=4, sharding="NONE"
        )
        assert of(setup, "ends") == due
        assert (ends(setup).size, ends(setup).nodes) == (2, nodes)
        assert any("tied matrix" in words for words in speed_plan(setup).waits_s) == tied
    assert of(tiny(4, config=replace(TINY, tied=True), pipeline=2), "ends") == 129 * 40 * 4  # of one of two shards


def test_tensor_parallel_ranks_share_the_parameters():
    """Each gathers and reduces its own part: Psi / t, but for norms, which all have."""
    config = replace(TINY, vocab_size=256, n_layers=2, n_kv_heads=4)
    plain, cut = (tiny(world_size=w, tensor=t, config=config) for w, t in ((2, 1), (4, 2)))
    assert of(cut, "shard") == pytest.approx(of(plain, "shard") / 2, rel=0.02)


# ----------------------------------------------------------------------------------------------------- LoRA, offloading


def test_lora_sends_no_gradients_of_the_base():
    frozen = tiny(2, lora_rank=4, sharding="DDP")
    trained = 3 * 4 * sum(a + b for a, b in ((40, 40), (40, 20), (40, 20), (40, 40), (40, 90), (40, 90), (90, 40)))
    assert total(frozen) == pytest.approx(2 * (1 / 2) * 4 * trained)


def test_offloading_by_hand():
    """FSDP fetches a shard for each all_gather and brings gradients out; the optimizer reads and writes the drives."""
    setup = tiny(2, offload="cpu")
    block, root = setup.shape.block_params, setup.shape.n_params - 3 * setup.shape.block_params
    shard = (3 * block + root) * 4 / 2
    gathered = 2 * 3 * block * 4 / 2 + root * 4 / 2
    assert bytes_by_link(setup) | {"inside": 0, "between": 0} == {
        "inside": 0,
        "between": 0,
        "host": pytest.approx(gathered + shard, rel=0.01),
        "nvme": 0,
    }
    drives = bytes_by_link(tiny(2, offload="nvme"))
    assert drives["host"] == pytest.approx(gathered + shard, rel=0.01)
    assert drives["nvme"] == pytest.approx(gathered + 2 * 3 * shard, rel=0.01)  # parameters and two moments


@settings(deadline=None)
@given(accumulation=st.integers(1, 5), sharding=st.sampled_from(["DDP", "ZERO_2", *FSDP]))
def test_delaying_reductions_never_sends_more(accumulation, sharding):
    options = {"sharding": sharding, "accumulation": accumulation}
    assert (
        total(tiny(**options, accumulate_unsharded=True))
        <= total(tiny(**options))
        <= accumulation * total(tiny(sharding=sharding))
    )
