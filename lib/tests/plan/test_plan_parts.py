"""Single parts of the planner, by hand: one figure of each, where the whole plan would hide a mistake."""

from types import SimpleNamespace

import pytest

from shardplan.advice import advice
from shardplan.api import figures_of, setup_of
from shardplan.memory import gathering
from shardplan.search import strategies
from shardplan.speed import achievable, collectives, offloading
from shardplan.stage_parameters import Weight, in_flight
from shardplan.traffic.groups import group
from shardplan.traffic.messages import Send
from shardsim.machines import machine


def test_shard_size_divides_the_ranks_that_share_the_data():
    """Eight GPUs in pairs of tensor parallelism: four share the data."""
    with pytest.raises(ValueError, match="it must divide the 4 ranks that share the data"):
        setup_of("1B", "dgx-h100", 8, tensor=2, shard_size=8)
    assert setup_of("1B", "dgx-h100", 8, tensor=2, shard_size=4).shards == 4


def test_context_parallel_ranks_share_their_sequences():
    """Eight GPUs, two to a sequence: a micro-batch of one sequence is four, and a global batch of 8 takes two."""
    start = setup_of("1B", "dgx-h100", 8, context=2)
    assert strategies._setup(start, {"micro_batch": 1}, 8).strategy.accumulation == 2
    assert strategies._setup(start, {"micro_batch": 1}, 6) is None


def test_only_changes_that_fit_are_called_faster(monkeypatch):
    monkeypatch.setattr(advice, "_keeps_the_job", lambda *_: True)
    tries = [SimpleNamespace(fits=fits, is_faster_than=lambda _: True) for fits in (False, True)]
    assert advice._faster(None, tries) == tries[1:]


def test_a_reduce_scatter_has_its_input_in_the_wires_dtype():
    """Gradients are held in 4 bytes and reduced in 2: 8 ranks' rows of the wire, and this rank's share of gradients."""
    setup = setup_of("1B", "dgx-h100", 8, precision="bf16-mixed-bf16-reduce")
    unit = gathering._Unit("a block", (Weight("up", (64, 16), stored=4, gathered=2),), setup)
    [sent], [kept] = unit.reduce_input, unit.gradient
    assert sent.n_bytes == 8 * kept.n_bytes * 2 / 4


def test_keys_and_values_go_round_by_one_hop_less_than_there_are_ranks():
    setup = setup_of("1B", "dgx-h100", 8, context=4)
    ring, hop = (Send(kind, "keys and values", group(setup, "context"), 1e6, 1) for kind in ("ring", "send"))
    assert collectives.seconds(setup, ring) == pytest.approx(3 * collectives.seconds(setup, hop))


def test_the_gpus_of_a_node_share_its_hosts_memory():
    setup = setup_of("1B", "dgx-h100", 16)
    assert offloading._host_memory(setup) == achievable.HOST_MEMORY * 614.4e9 / 8


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("dgx-a100", 409.6), ("dgx-h100", 614.4), ("aws-p4d", 281.6), ("frontier", 204.8), ("RTX-4090", 51.2)],
)
def test_each_machines_host_has_its_own_memory(name, gb_per_s):
    """Channels x transfers a second x 8 bytes: 16 x 3.2 GT/s, 16 x 4.8, 12 x 2.933, 8 x 3.2; a desktop's 2 x 3.2."""
    assert machine(name).host_memory_bandwidth == pytest.approx(gb_per_s * 1e9, rel=1e-3)


@pytest.mark.parametrize(("accumulation", "first"), [(2, 2), (4, 4), (8, 4)])
def test_no_more_micro_batches_are_in_flight_than_there_are(accumulation, first):
    setup = setup_of("1B", "dgx-h100", 8, pipeline=4, accumulation=accumulation)
    assert in_flight(setup) == (first, 1)


def test_expandable_segments_lose_less():
    """The published losses between 9% and 21%: which end of them depends on the allocator's segments."""
    cut, grown = (figures_of(setup_of("1B", "dgx-h100", 8, expandable_segments=e)).memory for e in (False, True))
    assert cut.allocated_bytes == grown.allocated_bytes and cut.reserved_bytes[0] == grown.reserved_bytes[0]
    assert [m.reserved_bytes[1] / m.reserved_bytes[0] for m in (cut, grown)] == pytest.approx([1.21, 1.09])


def test_a_job_that_ran_with_tensor_parallelism_fits():
    """torchtitan's of June 2025: 8B on 64 H100 of 95 GiB, TP 8, selective, batch 12. The plan was 120 to 145 GiB."""
    options = {"tensor": 8, "recompute": "selective", "compile": True, "micro_batch": 12, "seq_len": 8192}
    plan = figures_of(setup_of("llama-3.1-8b", "grand-teton", 64, expandable_segments=True, **options))
    assert plan.fits != "no" and plan.memory.device_bytes[0] < 95 * 2**30
