"""Messages of tensor parallelism as DTensor sends them: one for each product that reads an input, and copies."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from shardplan import activations
from shardplan.api import setup_of
from shardplan.speed import passes
from shardplan.traffic.model_parallel import tensor_sends

RANKS = 4


def setup(**more):
    return setup_of("8B", "dgx-h100", 8, **{"tensor": RANKS, "micro_batch": 2, "seq_len": 4096} | more)


def counts(at, recomputed=True):
    found = {"all_gather": 0, "reduce_scatter": 0}
    for sends in tensor_sends(at, recomputed).values():
        for send in sends:
            found[send.kind] += send.times
    return found


def test_each_product_gathers_its_input():
    """KempnerForge's published profile of a 13B: 9,679 gathers and 6,420 scatters in 20 micro-batches of 40 blocks.

    The root's are 4 and 1 of them for a micro-batch. So a block, which is recomputed, has 12 and 8.
    """
    assert (round(9679 / 20) - 4, 6420 // 20 - 1) == (40 * 12, 40 * 8)
    assert counts(setup(recompute="full", gather_each=True)) == {"all_gather": 12, "reduce_scatter": 8}
    assert counts(setup(recompute="full")) == {"all_gather": 6, "reduce_scatter": 5}


def test_each_product_keeps_its_own_input():
    kept = {}
    for each in (False, True):
        block = activations.block(setup(gather_each=each, precision="bf16", norm_kernel="fused"), False)
        kept[each] = [term for term in block.kept if "all positions" in term.words]
    gathered = 2 * 4096 * 4096 * 2
    assert [len(terms) for terms in kept.values()] == [2, 5]
    assert {term.n_bytes for terms in kept.values() for term in terms} == {gathered}


@pytest.mark.parametrize(("products", "each"), [("compute", 2), ("fp8", 1), ("fp8-rows", 2)])
def test_what_is_multiplied_with_one_scale_is_gathered_in_8_bits(products, each):
    """torchao's Float8ColwiseParallel and Float8RowwiseParallel cast before they gather; sums stay in 16 bits."""
    at = setup(products=products, compile=True)
    numbers = 2 * 4096 * 4096
    for way in ("forward", "backward"):
        sizes = {send.kind: send.full_bytes for send in tensor_sends(at, False)[way]}
        assert sizes == {"all_gather": each * numbers, "reduce_scatter": 2 * numbers}
    (copies,) = (p for p in passes.block_passes(at) if p.name == "copies for tensor parallelism")
    assert copies.n_bytes == 2 * (2 * 2 * (each + 2) * numbers,)


def test_without_split_sequences_there_is_nothing_to_gather():
    plain, each = (counts_of_all_reduces(gather_each=on) for on in (False, True))
    assert plain == each == 2 + 2 + 1


def counts_of_all_reduces(**more):
    sends = tensor_sends(setup(recompute="full", sequence_parallel=False, **more), True)
    return sum(send.times for of in sends.values() for send in of)


class Copies(TorchDispatchMode):
    """Counts torch's copies of chunks, put side by side."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.n += function is torch.ops.aten.cat.default
        return function(*arguments, **(keywords or {}))


@pytest.fixture
def mesh():
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


@pytest.mark.parametrize(("dim", "copies"), [(0, 0), (1, 1)])
def test_dtensor_copies_what_it_exchanges_along_another_dimension_than_the_first(mesh, dim, copies):
    x = torch.zeros(8, 8, 3)
    for before, after in (([Shard(dim)], [Replicate()]), ([Partial()], [Shard(dim)])):
        with Copies() as found:
            DTensor.from_local(x, mesh, before).redistribute(placements=after).to_local()
        assert found.n == copies


@pytest.mark.parametrize(("each", "forward", "backward"), [(False, 4, 4), (True, 7, 7)])
def test_a_copy_reads_and_writes_the_whole_message(each, forward, backward):
    at = setup(gather_each=each)
    (found,) = (p for p in passes.block_passes(at) if p.name == "copies for tensor parallelism")
    one = 2 * (2 * 4096) * 4096 * 2
    assert found.n_bytes == (forward * one, backward * one) and found.launches == (forward, backward)


@pytest.mark.parametrize("more", [{"sequence_first": True}, {"async_tensor": True}, {"sequence_parallel": False}])
def test_messages_without_copies(more):
    assert "copies for tensor parallelism" not in {p.name for p in passes.block_passes(setup(**more))}


def test_messages_cut_in_hops_are_planned_with_one_gather_for_all():
    with pytest.raises(ValueError, match="gather_each"):
        setup(gather_each=True, async_tensor=True)
