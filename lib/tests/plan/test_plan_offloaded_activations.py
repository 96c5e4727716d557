"""Activations on the host: the bytes that a rank's hooks are given, two blocks on the GPU, the slower of two counts."""

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from shardlab import launch
from shardlab.model import Transformer, preset
from shardlab.recompute import checkpoint_blocks
from shardlab.text_batches import batch
from shardplan.activations.away import away_bytes, kept_bytes
from shardplan.activations.sizes import Chosen
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardplan.speed.kernels import block_work
from shardplan.stage_parameters import stages
from shardplan.strategy import Strategy
from shardplan.traffic import bytes_by_link
from shardsim.machines import machine

CONFIG = preset("1M", n_layers=3)


def planned(on: bool = True, **strategy) -> Setup:
    options = {"precision": "fp32", "sharding": "NONE", "seq_len": 64, "micro_batch": 2} | strategy
    return Setup(Shape.of("small", CONFIG), machine("dgx-h100"), 1, Strategy(offload_activations=on, **options))


def _given_to_hooks(recompute: str) -> list[int]:
    """Return the bytes that each block hands to hooks, each storage once, but for weights and the angles of all."""
    model, found = Transformer(CONFIG), []
    if recompute == "full":
        checkpoint_blocks(model.blocks)
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known and tensor.is_floating_point():
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    for block in model.blocks:
        inner = block.forward

        def forward(x, *others, inner=inner):
            sizes.clear()
            known.update(t.untyped_storage().data_ptr() for t in others if isinstance(t, torch.Tensor))
            with saved_tensors_hooks(pack, lambda tensor: tensor):
                y = inner(x, *others)
            found.append(sum(sizes.values()))
            return y

        block.forward = forward
    model(*batch(0, 0, 0, 1, global_batch=2, seq_len=64)).backward()
    return found[: CONFIG.n_layers]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_hooks_are_given_what_is_planned(recompute):
    given = launch(_given_to_hooks, 1, recompute, device="cpu", stream=False)[0]
    setup = planned(recompute=recompute)
    assert given == 3 * [kept_bytes(Chosen.of(setup), recompute == "full", on_gpu=False)]


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_all_blocks_but_the_last_go_out_and_come_in(recompute):
    setup = planned(recompute=recompute, accumulation=4)
    each = kept_bytes(Chosen.of(setup), recompute != "none")
    assert away_bytes(setup, stages(setup)[0]) == 2 * each
    assert bytes_by_link(setup)["host"] == 2 * 4 * 2 * each
    assert memory_plan(setup).host_bytes == 2 * each
    assert away_bytes(planned(False), stages(setup)[0]) == bytes_by_link(planned(False))["host"] == 0


def test_two_blocks_are_on_the_gpu_at_a_time():
    """In the backward of each block, but the first: what it keeps, and what the one before it keeps."""
    setup, plain = planned(recompute="none"), planned(False, recompute="none")
    each = kept_bytes(Chosen.of(setup), False)
    held = {
        of: {m.name: m.n_bytes for m in memory_plan(of).moments if m.name.startswith("backward of block")}
        for of in (setup, plain)
    }
    saved = {name: n - held[setup][name] for name, n in held[plain].items()}
    assert saved == {"backward of block 3": each, "backward of block 2": 0, "backward of block 1": 0}


def test_a_pipelines_other_micro_batches_are_on_the_host():
    options = {"pipeline": 4, "accumulation": 8, "seq_len": 8192, "recompute": "full"}
    plain, away = (setup_of("8B", "dgx-h100", 8, offload_activations=on, **options) for on in (False, True))
    of_blocks = away_bytes(away, stages(away)[0])  # of the first stage, which has four in flight
    assert memory_plan(away).host_bytes == 4 * of_blocks
    assert memory_plan(away).allocated_bytes < memory_plan(plain).allocated_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_slower_of_computing_and_copying_counts(recompute):
    setup = setup_of("8B", "dgx-h100", 1, sharding="NONE", recompute=recompute, offload_activations=True)
    port = setup.machine.host.bandwidth_bytes_per_s
    copies_s = kept_bytes(Chosen.of(setup), recompute == "full") / port
    work = block_work(setup, recompute == "full")
    late_s = sum(max(0.0, copies_s - way.seconds) for way in (work.forward, work.backward))
    assert speed_plan(setup).parts_s["offload"] == pytest.approx(32 * late_s, abs=1e-9)
    assert (late_s > 0) == (recompute == "none")
    slow = replace(
        setup, machine=replace(setup.machine, host=replace(setup.machine.host, bandwidth_bytes_per_s=port / 100))
    )
    assert speed_plan(slow).parts_s["offload"] > 0
