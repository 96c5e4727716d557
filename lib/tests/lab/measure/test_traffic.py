"""record_traffic says what a rank issued: how many collectives, of how many bytes, and what a ring sends for them."""

import os
import warnings
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from training import SINCE_2_12

from shardlab import launch
from shardlab.launch import flight_recorder
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardsim import simulated

ELEMENTS = 96  # float32, divisible by 2 and by 4


def collectives(world_size: int) -> dict:
    """One after the other: what each leaves in the record."""
    whole, shard = torch.ones(ELEMENTS), torch.ones(ELEMENTS // world_size)
    dtensor = DTensor.from_local(shard, init_device_mesh("cpu", (world_size,)), [Shard(0)])
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "asynchronous": lambda: dist.all_reduce(whole, async_op=True).wait(),
        "half precision": lambda: dist.all_reduce(whole.bfloat16()),
        "all_gather": lambda: dist.all_gather(list(torch.empty(ELEMENTS).chunk(world_size)), shard),
        "functional all_gather": lambda: dtensor.full_tensor().sum(),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty_like(shard), whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "barrier": dist.barrier,
        "nothing": lambda: None,
    }
    found = {}
    for name, call in calls.items():
        with record_traffic() as traffic:
            call()
        call()  # outside of the block: not recorded
        kinds, where = dict(traffic.kinds()), {c.where.split(":")[0] for c in traffic.collectives}
        found[name] = kinds, traffic.wire_bytes(world_size), where
    with record_traffic() as everything:
        for call in calls.values():
            call()
    found["everything"] = everything.count(), everything.wire_bytes(world_size), everything.count("all_gather")
    return found


@pytest.mark.parametrize("n", [2, 4])
def test_counts_and_wire_bytes_are_the_closed_forms(n):
    size = 4 * ELEMENTS
    expected = {
        "all_reduce": ({"all_reduce": 1}, 2 * (n - 1) / n * size),
        "asynchronous": ({"all_reduce": 1}, 2 * (n - 1) / n * size),
        "half precision": ({"all_reduce": 1}, 2 * (n - 1) / n * size / 2),
        "all_gather": ({"all_gather": 1}, (n - 1) / n * size),
        "functional all_gather": ({"all_gather": 1}, (n - 1) / n * size),
        "reduce_scatter": ({"reduce_scatter": 1}, (n - 1) / n * size),
        "all_to_all": ({"all_to_all": 1}, (n - 1) / n * size),
        "broadcast": ({"broadcast": 1}, (n - 1) / n * size),
        "barrier": ({"barrier": 1}, 0),
        "nothing": ({}, 0),
    }
    for rank, found in enumerate(launch(collectives, n, n, device="cpu", stream=False)):
        count, wire, gathers = found.pop("everything")
        assert (count, gathers) == (sum(sum(kinds.values()) for kinds, _, _ in found.values()), 2)
        assert wire == pytest.approx(sum(wire for _, wire, _ in found.values()))
        for name, (kinds, wire, where) in found.items():
            assert (kinds, wire) == (expected[name][0], pytest.approx(expected[name][1])), f"rank {rank}: {name}"
            assert where <= {"test_traffic.py"}, "a collective is put down to the line that issued it"


@pytest.mark.parametrize(
    ("kind", "into", "out", "factor"),
    [
        ("all_reduce", 1200, 1200, lambda n: 2 * (n - 1) / n),
        ("all_gather", 300, 1200, lambda n: (n - 1) / n),
        ("reduce_scatter", 1200, 300, lambda n: (n - 1) / n),
        ("all_to_all", 1200, 1200, lambda n: (n - 1) / n),
        ("broadcast", 1200, 1200, lambda n: (n - 1) / n),  # the ring's last rank has nobody to pass it on to
        ("reduce", 1200, 1200, lambda n: (n - 1) / n),
        ("send", 1200, 0, lambda n: 1),
    ],
)
def test_a_ring_sends_the_textbooks_share_of_the_whole_tensor(kind, into, out, factor):
    """Thakur, Rabenseifner & Gropp 2005; the whole tensor is the input or the output, whichever is larger."""
    collective = flight_recorder.Collective(1, "0", kind, into, out, "Float", ((1,),), 0.0, "")
    for n in (1, 2, 3, 4, 64):
        assert wire_bytes(collective, n) == pytest.approx(factor(n) * 1200)


def reduce_scatters() -> dict[str, list]:
    """Every way to ask for one, ELEMENTS in and a share out; beside an all_reduce of the same size.

    gloo carries all of them out as all_reduces. CommDebugMode stands above gloo and sees what was asked for.
    """
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames some of these
    n, group = dist.get_world_size(), dist.group.WORLD
    whole, share = torch.ones(ELEMENTS), torch.empty(ELEMENTS // n)
    calls = {
        "tensor": partial(dist.reduce_scatter_tensor, share, whole),
        "mean": partial(dist.reduce_scatter_tensor, share, whole, op=dist.ReduceOp.AVG),
        "asynchronous": lambda: dist.reduce_scatter_tensor(share, whole, async_op=True).wait(),
        "list": lambda: dist.reduce_scatter(share, list(whole.chunk(n))),
        "functional": lambda: functional.reduce_scatter_tensor(whole, "sum", 0, group).wait(),
        "coalesced": lambda: functional.reduce_scatter_tensor_coalesced([whole] * 2, "sum", [0, 0], group)[0].wait(),
        "all_reduce": partial(dist.all_reduce, whole),
    }
    found = {}
    for name, call in calls.items():
        with record_traffic() as traffic, CommDebugMode() as debug:
            call()
            call()
        found[name] = [(c.kind, c.input_bytes, c.output_bytes, c.where.split(":")[0]) for c in traffic.collectives]
        found[name] += [traffic.wire_bytes(n), debug.get_total_counts()]
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_reduce_scatter_is_counted_as_what_it_is(n):
    size = 4 * ELEMENTS
    for found in launch(reduce_scatters, n, device="cpu"):
        seen = [("all_reduce", size, size, "test_traffic.py")] * 2
        assert found.pop("all_reduce") == [*seen, pytest.approx(2 * 2 * (n - 1) / n * size), 2]
        seen = [("reduce_scatter", size, size // n, "test_traffic.py")] * 4
        assert found.pop("coalesced") == [*seen, pytest.approx(4 * (n - 1) / n * size), 2]
        for name, what in found.items():
            assert what == [*seen[:2], pytest.approx(2 * (n - 1) / n * size), 2], name


def group_of_two() -> list:
    """Ranks 1 and 2 of three: a share is half of the whole, not a third."""
    group = dist.new_group([1, 2])
    with record_traffic() as traffic:
        if dist.get_rank() > 0:
            dist.reduce_scatter_tensor(torch.empty(5), torch.ones(10), group=group)
            dist.reduce_scatter(torch.empty(5), [torch.ones(5)] * 2, group=group)
    return [(c.kind, c.input_bytes, c.output_bytes) for c in traffic.collectives]


def test_a_share_is_that_of_the_group():
    expected = [("reduce_scatter", 40, 20)] * 2
    assert launch(group_of_two, 3, device="cpu") == [[], expected, expected]


def sharded_step(shard) -> tuple:
    """One step under torch's FSDP: what is counted here, and what CommDebugMode counts."""
    warnings.simplefilter("ignore", FutureWarning)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    n_bytes = sum(p.nbytes for p in model.parameters())
    model = shard(model)
    with record_traffic() as traffic, CommDebugMode() as debug:
        model(torch.ones(2, 8)).sum().backward()
    counts = {"all_gather": 0, "reduce_scatter": 0}
    for op, count in debug.get_comm_counts().items():
        counts["reduce_scatter" if "reduce_scatter" in str(op) else "all_gather"] += count
    return dict(traffic.kinds()), counts, traffic.wire_bytes(dist.get_world_size()) / n_bytes


def fsdp2(model: nn.Module) -> nn.Module:
    return fully_shard(model)


def fsdp1(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


@pytest.mark.parametrize("shard", [fsdp1, fsdp2])
def test_torchs_fsdp_gathers_and_scatters(shard):
    """The root is not resharded in between: one all_gather and one reduce_scatter of all parameters, 144 elements."""
    for counted, debug, wire in launch(partial(sharded_step, shard), 2, device="cpu"):
        assert counted == debug == {"all_gather": 1, "reduce_scatter": 1}
        assert wire == 2 * (2 - 1) / 2


def messages() -> dict[str, tuple]:
    """12 bytes round the ring, by each way to send; then one message from rank 0 to rank 1."""
    rank, n = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % n, (rank - 1) % n
    x, y = torch.ones(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)

    def pair():
        for work in [dist.isend(x, to), dist.irecv(y, source)]:
            work.wait()

    def any_source():
        for work in [dist.isend(x, to), dist.irecv(y)]:
            work.wait()

    def batch():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, source)]):
            work.wait()

    def one_way():
        if rank < 2:
            dist.send(x, 1) if rank == 0 else dist.recv(y, 0)

    found = {}
    for call in (pair, any_source, batch, one_way):
        with record_traffic() as traffic:
            call()
        call()  # outside of the block: not recorded
        sizes = sorted((c.kind, c.input_bytes, c.output_bytes, c.signature) for c in traffic.collectives)
        found[call.__name__] = sizes, traffic.wire_bytes(n), {c.where.split(":")[0] for c in traffic.collectives}
        dist.barrier()
    return found


def as_recorded(name: str, into: list, out: list, function: str) -> flight_recorder.Collective:
    frames = [{"filename": "/x/torch/distributed/distributed_c10d.py", "line": 1, "name": function}]
    entry = {"profiling_name": name, "collective_seq_id": 1, "process_group": ("0", ""), "time_created_ns": 0}
    sizes = {"input_sizes": [into], "output_sizes": [out], "input_dtypes": ["Half"], "output_dtypes": ["Half"]}
    [entry] = flight_recorder._as_asked_for([entry | sizes | {"frames": frames}])
    return flight_recorder._parse(entry)


def test_nccls_own_record_is_left_as_it_is():
    """NCCL runs a reduce_scatter as one, and writes the peers of a message into its name."""
    scatter = partial(as_recorded, "nccl:_reduce_scatter_base", [24], [12], "reduce_scatter_single")
    for c in launch(scatter, 2, device="cpu"):
        assert (c.kind, c.input_bytes, c.output_bytes) == ("reduce_scatter", 48, 24)
    gather = partial(as_recorded, "nccl:_all_gather_base", [12], [24], "all_gather_single")
    for c in launch(gather, 2, device="cpu"):
        assert (c.kind, c.input_bytes, c.output_bytes) == ("all_gather", 24, 48)
    assert as_recorded("nccl:send 0->1", [24], [24], "isend").kind == "send"


def test_a_caller_is_whoever_is_outside_of_torch_and_its_with_statements():
    files = "/x/torch/fsdp/api.py", "/lib/python3.11/contextlib.py", "/x/torch/nn/module.py", "/home/train.py"
    frames = [{"filename": file, "line": line, "name": "step"} for line, file in enumerate(files)]
    assert flight_recorder.where(frames) == "train.py:3 in step"


@pytest.mark.parametrize("network", [None, "1 Gb/s, 10 us"])
def test_messages_count_where_they_are_sent(network):
    sent, received = ("send", 12, 0, "send Int[3]"), ("recv", 0, 12, "recv Int[3]")
    for rank, found in enumerate(launch(messages, 3, device="cpu", network=network and simulated(network))):
        one_way, wire, _ = found.pop("one_way")
        assert (one_way, wire) == [([sent], 12), ([received], 0), ([], 0)][rank]
        for name, (kinds, wire, where) in found.items():
            assert (kinds, wire) == ([received, sent], 12), name
            assert network or where == {"test_traffic.py"}


def overflow(extra: int, call=dist.all_reduce) -> str:
    x = torch.ones(1)
    try:
        with record_traffic():
            for _ in range(flight_recorder.BUFFER_ENTRIES + extra):
                call(x)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.night  # by day a ring of 30
def test_a_record_that_the_ring_has_cut_short_is_refused():
    assert launch(overflow, 1, -1, device="cpu") == [""]
    [message] = launch(overflow, 1, 1, device="cpu")
    assert f"keeps {flight_recorder.BUFFER_ENTRIES} collectives" in message


def overflow_of(ring: str, calls: int) -> str:
    with patch.dict(os.environ, {"TORCH_FR_BUFFER_SIZE": ring}):
        return overflow(calls - flight_recorder.BUFFER_ENTRIES)


def test_a_ring_that_somebody_has_made_smaller_is_believed():
    assert launch(overflow_of, 1, "30", 29, device="cpu") == [""]
    [message] = launch(overflow_of, 1, "30", 30, device="cpu")
    assert "keeps 30 collectives" in message


def overflow_of_lists(calls: int) -> str:
    flight_recorder.BUFFER_ENTRIES = 10  # as if
    share = torch.ones(1)
    return overflow(calls - 10, lambda x: dist.reduce_scatter(x, [share, share]))


def test_a_list_takes_an_entry_for_each_share():
    assert launch(overflow_of_lists, 2, 4, device="cpu") == ["", ""]
    assert all("keeps 10 collectives" in message for message in launch(overflow_of_lists, 2, 5, device="cpu"))


def methods_are_torchs_again() -> bool:
    methods = [dist.ProcessGroup.send, dist.ProcessGroup.recv, dist.ProcessGroup.recv_anysource]
    with record_traffic():
        pass
    return methods == [dist.ProcessGroup.send, dist.ProcessGroup.recv, dist.ProcessGroup.recv_anysource]


def test_nothing_stays_behind():
    assert launch(methods_are_torchs_again, 1, device="cpu") == [True]


def in_two_groups() -> tuple[dict, float]:
    """An all_gather among all four, and all_reduces among two."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole = torch.ones(ELEMENTS)
    with record_traffic() as traffic:
        dist.all_gather(list(torch.empty(ELEMENTS).chunk(4)), whole[: ELEMENTS // 4])
        dist.all_reduce(whole, group=pairs[dist.get_rank() // 2])
    return {kind: traffic.sent_bytes(kind) for kind in ("all_gather", "all_reduce")}, traffic.sent_bytes()


def test_sent_bytes_are_those_of_each_collectives_own_group():
    size = 4 * ELEMENTS
    due = {"all_gather": 3 / 4 * size, "all_reduce": 2 * 1 / 2 * size}
    assert launch(in_two_groups, 4, device="cpu", stream=False) == [(due, sum(due.values()))] * 4


def uneven_all_to_alls() -> tuple[list[float], list[float]]:
    """Rank r sends (r+1)(d+1) numbers to rank d. What was counted, and what left this rank."""
    rank, n = dist.get_rank(), dist.get_world_size()
    to, from_ = [(rank + 1) * (d + 1) for d in range(n)], [(s + 1) * (rank + 1) for s in range(n)]
    with record_traffic() as traffic:
        dist.all_to_all_single(torch.empty(sum(from_)), torch.ones(sum(to)), from_, to)
        dist.all_to_all_single(torch.empty(sum(from_), 3), torch.ones(sum(to), 3), from_, to, async_op=True).wait()
        dist.all_to_all_single(torch.empty(0), torch.empty(0))  # an expert without tokens
        if SINCE_2_12:  # gloo had none of lists before
            dist.all_to_all([torch.empty(5) for _ in range(n)], [torch.ones(5) for _ in range(n)])
    sent = sum(to) - to[rank]
    return [wire_bytes(c, n) for c in traffic.collectives], [4 * sent, 12 * sent, 0, *[20 * (n - 1)] * SINCE_2_12]


@pytest.mark.parametrize("n", [2, 4])
def test_an_uneven_all_to_all_sends_all_but_a_ranks_own_part(n):
    for counted, sent in launch(uneven_all_to_alls, n, device="cpu"):
        assert counted == sent


@pytest.mark.parametrize("wrapper", ["python3.14/_py_warnings.py", "python3.13/warnings.py", "typing_extensions.py"])
def test_the_caller_is_not_the_wrapper_of_what_torch_deprecates(wrapper):
    """`warnings.deprecated` calls the function for us; since Python 3.14 it stands in a file of another name."""
    files = ["/torch/distributed/distributed_c10d.py", f"/usr/lib/{wrapper}", "/home/ada/step.py"]
    frames = [{"filename": file, "line": 7, "name": "train"} for file in files]
    assert flight_recorder.where(frames) == "step.py:7 in train"
