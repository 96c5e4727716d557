"""record_traffic says what a rank issued: how many collectives, of how many bytes, and what a ring sends for them."""

import pytest
import torch
import torch.distributed as dist

from shardlab import flight, launch
from shardlab.measure.traffic import record_traffic, wire_bytes

ELEMENTS = 96  # float32, divisible by 2 and by 4


def collectives(world_size: int) -> dict:
    """One after the other: what each leaves in the record."""
    whole, shard = torch.ones(ELEMENTS), torch.ones(ELEMENTS // world_size)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "asynchronous": lambda: dist.all_reduce(whole, async_op=True).wait(),
        "half precision": lambda: dist.all_reduce(whole.bfloat16()),
        "all_gather": lambda: dist.all_gather(list(torch.empty(ELEMENTS).chunk(world_size)), shard),
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
        "all_to_all": ({"all_to_all": 1}, (n - 1) / n * size),
        "broadcast": ({"broadcast": 1}, size),
        "barrier": ({"barrier": 1}, 0),
        "nothing": ({}, 0),
    }
    for rank, found in enumerate(launch(collectives, n, n, device="cpu", stream=False)):
        count, wire, gathers = found.pop("everything")
        assert (count, gathers) == (sum(sum(kinds.values()) for kinds, _, _ in found.values()), 1)
        assert wire == pytest.approx(sum(wire for _, wire, _ in found.values()))
        kinds, wire, _ = found.pop("reduce_scatter")
        # torch's gloo carries it out as an all_reduce of the whole tensor, and the recorder says what was carried out.
        assert (kinds, wire) in [
            ({"all_reduce": 1}, 2 * (n - 1) / n * size),
            ({"reduce_scatter": 1}, (n - 1) / n * size),
        ]
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
        ("broadcast", 1200, 1200, lambda n: n > 1),
    ],
)
def test_a_ring_sends_the_textbooks_share_of_the_whole_tensor(kind, into, out, factor):
    """Thakur, Rabenseifner & Gropp 2005; the whole tensor is the input or the output, whichever is larger."""
    collective = flight.Collective(1, "0", kind, into, out, "Float", ((1,),), 0.0, "")
    for n in (1, 2, 3, 4, 64):
        assert wire_bytes(collective, n) == pytest.approx(factor(n) * 1200)


def overflow(extra: int) -> str:
    x = torch.ones(1)
    try:
        with record_traffic():
            for _ in range(flight.BUFFER_ENTRIES + extra):
                dist.all_reduce(x)
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_record_that_the_ring_has_cut_short_is_refused():
    assert launch(overflow, 1, -1, device="cpu") == [""]
    [message] = launch(overflow, 1, 1, device="cpu")
    assert f"keeps {flight.BUFFER_ENTRIES} collectives" in message
