"""FP8 in a plan: messages are those of lesson 18's ranks and of torchao's; copies in 8 bits are counted by hand."""

import importlib.util
import logging
import warnings

import pytest
import torch
from lesson_answers import definitions
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardcourse.experiments import eight_bit_weights as small
from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer
from shardplan import activations
from shardplan.activations.sizes import Chosen
from shardplan.api import figures_of, setup_of
from shardplan.flops import block_products, head_products
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Point
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardplan.speed.kernels import product_s
from shardplan.strategy import Strategy
from shardplan.traffic import sends
from shardsim.machines import machine

OF_LESSON = {"compute": None, "fp8-each": "TensorScale", "fp8-rows": "RowScale"}


def planned(ranks: int = 4, **strategy) -> Setup:
    options = {"precision": "bf16-mixed", "optimizer_kernel": "forloop", "seq_len": 64} | strategy
    return Setup(Shape.of("small", small.CONFIG), machine("dgx-h100"), ranks, Strategy(**options))


def messages(setup: Setup, kind: str) -> tuple[int, float]:
    """Number of a kind of message in a step, and their bytes."""
    of_kind = [s for s in sends(setup) if s.kind == kind and s.group.size > 1]
    return sum(s.times for s in of_kind), sum(s.bytes for s in of_kind)


@pytest.mark.parametrize("gather", OF_LESSON)
def test_ranks_send_what_is_planned(gather):
    """Lesson 18's own weights under FSDP2, which decode what arrives: gathers and messages of scales, to the byte."""
    lesson = definitions("18_eight_bits_on_the_wire.ipynb", seed=1)
    format = lesson[OF_LESSON[gather]]() if OF_LESSON[gather] else None
    options = {"device": "cpu", "threads_per_rank": 1, "stream": False}
    found = launch(lesson["train_sharded"], 4, format, 1, **options)[0][2]
    setup = planned(gather=gather)
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert found.get(kind, (0, 0)) == messages(setup, kind), kind


def _torchao_sends(precompute: bool) -> dict[str, tuple[int, float]]:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

    model = Transformer(small.CONFIG)
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    for block in model.blocks:
        convert_to_float8_training(block, config=config)
        fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(2):
        with record_traffic() as traffic:
            model(*small.data(0, step, torch.distributed.get_rank(), 4)).backward()
            optimizer.step()
            if precompute:
                precompute_float8_dynamic_scale_for_fsdp(model)
    return {kind: (n, traffic.sent_bytes(kind)) for kind, n in traffic.kinds().items()}


@pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="needs torchao")
@pytest.mark.parametrize("gather", ["fp8", "fp8-each"])
def test_torchao_sends_what_is_planned(gather):
    """A whole model: codes and norms, gradients, and the scales in one message or in many."""
    found = launch(_torchao_sends, 4, gather == "fp8", device="cpu", threads_per_rank=1, stream=False)[0]
    setup = planned(gather=gather, products="fp8", compile=True)
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert found[kind] == messages(setup, kind), kind


def test_what_arrives_in_fp8_stays_in_fp8_if_products_use_it():
    """Unsharded matrices of a block: one byte each for products in fp8; lesson 18 decodes them to two."""
    numbers = small.sizes(0)["matrices of the blocks"] / small.CONFIG.n_layers
    in_fp8, decoded = (_unsharded(planned(products=p, compile=True, gather="fp8")) for p in ("fp8", "compute"))
    assert decoded - in_fp8 == numbers


def _unsharded(setup: Setup) -> float:
    terms = (t for m in memory_plan(setup).moments for t in m.terms)
    return next(t.n_bytes for t in terms if t.words == "unsharded parameters of a block")


@pytest.mark.parametrize("gather", ["compute", "fp8"])
def test_a_product_holds_both_factors_in_8_bits_while_it_multiplies(gather):
    """`down`: backward multiplies its gradient (B T D) by its input (B T F), then by its matrix, if that is cast."""
    chosen = Chosen.of(planned(products="fp8", compile=True, gather=gather))
    part = activations.block(chosen, False, on_gpu=True)
    tokens, config = 64, small.CONFIG
    g, x, w = tokens * config.dim, tokens * config.hidden_dim, config.dim * config.hidden_dim
    matrix = [w] if gather == "compute" else []
    assert sorted(_codes(part.forward)) == sorted([x, *matrix])  # forward is fullest in its last product
    of_down = [sorted(_codes(point)) for point in part.backward if ".down" in point.name]
    assert sorted([g, x]) in of_down and sorted([g, *matrix]) in of_down
    assert all(len(codes) <= 2 for codes in map(_codes, part.backward))
    assert not any(map(_codes, [Point("kept", part.kept)]))  # autograd keeps the originals


def _codes(point: Point) -> list[float]:
    return [t.n_bytes for t in point.terms if t.words.endswith("in 8 bits")]


def test_products_are_as_much_faster_as_the_cards_say():
    """Published shares of the data sheet: 1402.6 of 1979 in fp8 for 794 of 989 in bf16, on an H100."""
    bf16, fp8 = (setup_of("8B", "dgx-h100", 8, products=products, compile=True) for products in ("compute", "fp8"))
    up = next(p for p in block_products(fp8) if p.name == "feed_forward.up")
    assert product_s(bf16, up) / product_s(fp8, up) == pytest.approx(1402.6 / 1979 * 1978.9 / 794 / (989.4 / 989))
    assert product_s(bf16, head_products(bf16)[0]) == product_s(fp8, head_products(fp8)[0])  # the output layer stays
    parts = [speed_plan(setup).parts_s["computation"] for setup in (bf16, fp8)]
    assert parts[1] < parts[0] < 1.77 * parts[1]


def test_casts_cost_less_if_matrices_arrive_in_fp8():
    options = {"products": "fp8", "compile": True}
    cast, gathered = (figures_of(setup_of("8B", "dgx-h100", 64, gather=g, **options)) for g in ("compute", "fp8"))
    assert gathered.speed.parts_s["computation"] < cast.speed.parts_s["computation"]
    assert gathered.memory.allocated_bytes <= cast.memory.allocated_bytes
