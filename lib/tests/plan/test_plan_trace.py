"""The trace without hardware: equal to what a MemoryTracker finds on real ranks, to the byte; and to arithmetic, where
there are no such ranks."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from shardlab import LaunchError, launch
from shardlab.model import ModelConfig, Transformer, preset
from shardplan import trace as package
from shardplan.formulas import Expected, units_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Moment
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardplan.trace import step_parts, trace_memory
from shardplan.trace.layers import deeper, depths
from shardplan.trace.run import moments_of
from shardplan.trace.tracker import Kind, Part
from shardsim.machines import machine

UNEVEN = ModelConfig(vocab_size=257, dim=40, n_layers=4, n_heads=4, n_kv_heads=2, hidden_dim=90, max_seq_len=64)
TINY = {"precision": "fp32", "optimizer_kernel": "forloop", "seq_len": 24, "micro_batch": 2}


def setup(world_size: int = 4, config: ModelConfig = UNEVEN, **strategy) -> Setup:
    return Setup(Shape.of("test", config), machine("dgx-h100"), world_size, Strategy(**(TINY | strategy)))


def by_category(moments: tuple[Moment, ...]) -> list[tuple[str, dict[str, float]]]:
    return [(m.name, m.by_category()) for m in moments]


def fullest(moments: tuple[Moment, ...]) -> float:
    return max(m.n_bytes for m in moments)


# ------------------------------------------------------------------------------------------------- beside real ranks

QUICK = [
    {"precision": "bf16-mixed", "recompute": "selective"},
    {"shard_size": 2, "sharding": "SHARD_GRAD_OP", "optimizer_kernel": "foreach"},
    {"sharding": "ZERO_2", "bucket_cap_mb": 0.05},
]
THOROUGH = [
    {},
    {"recompute": "full", "recompute_every": 2, "optimizer": "momentum"},
    {"accumulation": 2, "accumulate_unsharded": True, "wrap": "whole"},
    {"sharding": "DDP", "bucket_cap_mb": 0.05},
    {"precision": "bf16-mixed"},
    {"precision": "bf16-mixed-bf16-reduce", "recompute": "products"},
    {"precision": "bf16-autocast"},
    {"precision": "bf16-autocast", "recompute": "full"},
    {"precision": "bf16"},
    {"precision": "bf16-master"},
    {"precision": "bf16-master", "optimizer_kernel": "foreach"},
    {"recompute": "full"},
    {"recompute": "selective"},
    {"sharding": "SHARD_GRAD_OP"},
    {"shard_size": 2},
    {"shard_size": 2, "precision": "bf16-mixed-bf16-reduce"},
    {"optimizer_kernel": "fused"},
    {"optimizer": "sgd"},
    {"accumulation": 5},  # of which the trace runs three
    {"attention": "math"},
    {"sharding": "DDP", "gradient_as_bucket_view": True, "accumulation": 2},
    {"sharding": "DDP", "precision": "bf16-autocast", "accumulation": 2, "accumulate_unsharded": True},
    {"sharding": "DDP+ZERO_1"},
    {"sharding": "ZERO_1", "precision": "bf16-autocast"},
    {"sharding": "ZERO_2", "accumulation": 2, "accumulate_unsharded": True},
]


def measured(setups: list[Setup]) -> list[list[Part]]:
    return [step_parts(s, "cpu") for s in setups]


def compare_with_ranks(world_size: int, strategies: list[dict]) -> None:
    """To the byte, in every part of the step. No rank holds more than the first, but for some bytes where ZeRO deals
    out intervals: of how many parameters, the optimizer's step counts tell. Since both run one program, the closed form
    says whether it is the one that was asked for."""
    setups = [setup(world_size, **s) for s in strategies]
    ranks = launch(measured, world_size, setups)
    for i, s in enumerate(setups):
        first, *others = (moments_of(rank[i]) for rank in ranks)
        trace = trace_memory(s)
        assert by_category(trace.moments) == by_category(first), strategies[i]
        assert max(map(fullest, others)) <= 1.001 * fullest(first), strategies[i]
        assert memory_plan(s, on_gpu=False).allocated_bytes == pytest.approx(trace.allocated_bytes, rel=0.03), (
            strategies[i]
        )


def test_equal_to_the_byte_on_real_ranks():
    compare_with_ranks(4, QUICK)


@pytest.mark.night
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world_size", [2, 4])
def test_equal_to_the_byte_on_real_ranks_in_every_way_to_train(world_size):
    compare_with_ranks(world_size, THOROUGH)
    if world_size == 2:
        tied = setup(2, replace(UNEVEN, tied=True), precision="bf16-mixed")
        held = moments_of(launch(measured, 2, [tied])[0][0])
        assert by_category(trace_memory(tied).moments) == by_category(held)


# ---------------------------------------------------------------------------------------- where there are no real ranks


@pytest.fixture(scope="module")
def of_8b():
    """8B on 64 ranks, one long sequence each, nothing kept of a block but its input."""
    return trace_memory(setup(64, preset("8B"), **(LONG | {"recompute": "full"})))


LONG = {"precision": "bf16-mixed", "seq_len": 8192, "micro_batch": 1}


def test_shards_are_arithmetic(of_8b):
    with torch.device("meta"):
        model = Transformer(preset("8B"))
    expected = Expected("FULL_SHARD", units_of(model, model.blocks), 64)
    last = of_8b.moments[-1]
    held = last.by_category()
    assert last.name == "optimizer"
    assert held["parameters"] == held["gradients"] == expected.parameters
    assert held["optimizer_states"] == expected.optimizer_states


def test_what_is_largest_is_named(of_8b):
    """With a large vocabulary, backward begins with three tensors of (tokens, V) in float32."""
    largest, everything = of_8b.largest(3), of_8b.largest(10**6)
    assert {t.n_bytes for t in largest} == {8192 * 128_256 * 4}
    assert all("(8192, 128256) float32" in t.words for t in largest)
    assert sum("backward of the output layer" in t.words for t in largest) == 2
    assert of_8b.peak.name == "backward of the output layer"
    assert of_8b.allocated_bytes == sum(t.n_bytes for t in everything)
    assert of_8b.peak.phase == "backward"
    assert everything[-1].n_bytes <= largest[0].n_bytes


def test_the_closed_form_agrees(of_8b):
    """Within 5%; `bench plan` has many more."""
    assert memory_plan(of_8b.setup).allocated_bytes == pytest.approx(of_8b.allocated_bytes, rel=0.05)


# ---------------------------------------------------------------------------------------------------- from few to many

DEEP = replace(UNEVEN, n_layers=12)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(
            {"precision": "bf16-mixed", "sharding": "SHARD_GRAD_OP", "optimizer_kernel": "foreach"},
            marks=pytest.mark.night,
        ),
        {"recompute": "full", "recompute_every": 2},
        pytest.param({"recompute": "full", "accumulation": 2, "accumulate_unsharded": True}, marks=pytest.mark.night),
        pytest.param(
            {"recompute": "selective", "precision": "bf16-autocast", "shard_size": 2}, marks=pytest.mark.night
        ),
        pytest.param({"recompute": "products", "precision": "bf16-master"}, marks=pytest.mark.night),
    ],
)
@pytest.mark.night
def test_many_blocks_follow_from_few(strategy):
    """Not only the bytes: every kind of tensor, in every part of the step."""
    s = setup(4, DEEP, **strategy)
    stretched, whole = trace_memory(s), trace_memory(s, every_block=True)
    assert len(stretched.depths) == 2 and whole.depths == (DEEP.n_layers,)
    for a, b in zip(stretched.moments, whole.moments, strict=True):
        assert (a.name, sorted(map(repr, a.terms))) == (b.name, sorted(map(repr, b.terms)))


def test_what_has_buckets_is_traced_whole():
    assert depths(setup(4, DEEP, sharding="DDP")) == (DEEP.n_layers,)
    assert depths(setup(4, DEEP, wrap="whole")) == (DEEP.n_layers,)
    assert depths(setup(4)) == (4,)


def decoder_step(n_layers: int, **kinds: int) -> list[Part]:
    """Made up: so many live tensors of each kind in every part."""
    blocks = [f"1: forward of block {i}" for i in range(1, n_layers + 1)]
    names = ["1: forward of the embedding", *blocks, *(b.replace("forward", "backward") for b in reversed(blocks))]
    live = Counter({Kind("activations", kind, (), "float32", "", 4): n for kind, n in kinds.items()})
    return [(name, live) for name in names]


def test_what_is_not_on_a_line_is_told():
    assert deeper(decoder_step(6, mm=6), decoder_step(7, mm=7), 10) == decoder_step(10, mm=10)
    assert deeper(decoder_step(6, mm=6), decoder_step(7, mm=5), 20) is None  # fewer than none
    assert deeper(decoder_step(8, mm=8), decoder_step(10, mm=11), 11) is None  # four and a half


def test_of_all_micro_batches_the_fullest_counts():
    """Where it comes last, so that a chart has each part once."""
    (_, one), (_, two) = decoder_step(1, mm=1)[0], decoder_step(1, mm=2)[0]
    moments = moments_of(
        [("1: forward of block 1", two), ("1: forward of block 2", one), ("2: forward of block 1", one)]
    )
    assert [(m.name, m.phase, m.n_bytes) for m in moments] == [
        ("forward of block 2", "forward", 4),
        ("forward of block 1", "forward", 8),
    ]


# ----------------------------------------------------------------------------------------------------- a good neighbour


def test_the_caller_is_not_disturbed(no_leaks, tmp_path):
    """Its process group, and torch.distributed, are as before."""
    gather = dist.all_gather_object
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        trace_memory(setup(16))
        assert (dist.get_world_size(), dist.get_backend()) == (1, "gloo")
    finally:
        dist.destroy_process_group()
    assert dist.all_gather_object is gather
    assert not _get_current_dispatch_mode_stack()


def test_it_ends_in_time(no_leaks):
    with pytest.raises(LaunchError, match="0.1 s"):
        trace_memory(setup(4, preset("8B")), timeout_s=0.1)


def test_on_a_rank_it_says_where_to_call_it():
    with pytest.raises(LaunchError, match="outside of launch"):
        launch(trace_memory, 1, setup(), stream=False)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"tensor": 2}, "tensor=2"),
        ({"lora_rank": 8}, "lora_rank=8"),
        ({"offload": "cpu"}, "offload='cpu'"),
        ({"compile": True}, "compile=True"),
        ({"cross_entropy": "fused"}, "cross_entropy='fused'"),
        ({"optimizer": "adamw-8bit"}, "optimizer='adamw-8bit'"),
        ({"precision": "bf16-mixed", "sharding": "DDP"}, "precision='bf16-mixed'"),
        ({"precision": "bf16-master-fp32-gradients"}, "precision='bf16-master-fp32-gradients'"),
    ],
)
def test_what_cant_be_traced_is_named(changes, field):
    with pytest.raises(ValueError, match=field):
        trace_memory(setup(**changes))


@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"head_dim": 6}, {"gated": False}, {"norm": "layer"}])
def test_a_model_of_another_kind_is_named(changes):
    s = setup()
    with pytest.raises(ValueError, match=next(iter(changes))):
        trace_memory(replace(s, shape=replace(s.shape, **changes)))


def test_no_file_of_it_imports_the_closed_form():
    """Two routes to one number are worth something as long as they stay two."""
    for file in Path(package.__file__).parent.glob("*.py"):
        imports = [line for line in file.read_text().splitlines() if "import" in line]
        assert not [line for line in imports for part in ("memory", "activations") if f"plan.{part}" in line], file.name
