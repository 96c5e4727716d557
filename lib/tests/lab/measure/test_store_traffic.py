"""What goes through the store, or as a pickled object, counts as bytes that a rank sends."""

import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardsim import simulated

PAYLOAD = 1000


def writes() -> dict[str, tuple]:
    """Return what each way to write counts, by kind and in bytes, and what stands in the store then."""
    store = dist.PrefixStore(f"rank{dist.get_rank()}", _get_default_store())
    text = "x" * PAYLOAD
    ways = {
        "set": lambda: store.set("key", text),
        "bytes": lambda: store.set("key", text.encode()),
        "compare_set": lambda: store.compare_set("new", "", text),
        "add": lambda: store.add("sum", 7),
        "default store": lambda: _get_default_store().set("key", text),
        "read": lambda: store.get("key"),
    }
    if KEPT:
        ways["kept method"] = partial(KEPT["set"], "key", text)
    found = {}
    for name, call in ways.items():
        with record_traffic() as traffic:
            call()
        found[name] = dict(traffic.kinds()), traffic.sent_bytes(), traffic.wire_bytes(dist.get_world_size())
        assert all(c.where.startswith("test_store_traffic.py") for c in traffic.collectives)
    found["in the store"] = len(store.get("key")), store.add("sum", 0)
    return found


def new_group() -> dict[str, int]:
    """Return what a group counts, which a simulated network notes in the store."""
    with record_traffic() as traffic:
        dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1]))
    return dict(traffic.kinds())


def test_a_simulated_networks_own_notes_are_not_the_programs():
    plain = launch(new_group, 2, device="cpu")
    assert launch(new_group, 2, device="cpu", network=simulated("1 Gb/s, 10 us")) == plain


KEPT: dict = {}


def writes_with_a_kept_method() -> dict[str, tuple]:
    with record_traffic():
        KEPT["set"] = _get_default_store().set  # of a block that has ended when it is called
    return writes()


@pytest.mark.parametrize(
    ("ask", "network"), [(writes, None), (writes, "1 Gb/s, 10 us"), (writes_with_a_kept_method, None)]
)
def test_a_write_counts_in_full_and_a_read_does_not(ask, network):
    for found in launch(ask, 2, device="cpu", network=network and simulated(network)):
        assert found.pop("in the store") == (PAYLOAD, 7)
        assert found.pop("read") == ({}, 0, 0)
        assert found.pop("add") == ({"store": 1}, 11, 11)  # the key and a number
        for name, counted in found.items():
            assert counted == ({"store": 1}, PAYLOAD + 3, PAYLOAD + 3), name


def objects() -> dict[str, tuple]:
    """Return the bytes of collectives of objects, which travel as pickles."""
    rank, n, thing = dist.get_rank(), dist.get_world_size(), list(range(50))
    ways = {
        "all_gather_object": lambda: dist.all_gather_object([None] * n, thing),
        "broadcast_object_list": lambda: dist.broadcast_object_list([thing], 0),
        "send_object_list": lambda: dist.send_object_list([thing], 1) if rank == 0 else None,
    }
    found = {}
    for name, call in ways.items():
        with record_traffic() as traffic:
            call()
            if name.startswith("send") and rank == 1:
                dist.recv_object_list([None], 0)
        found[name] = traffic.sent_bytes()
    return found


def test_pickled_objects_count_as_their_bytes():
    """Each call sends its pickles, and before them their lengths, 8 bytes each."""
    size = len(pickle.dumps(list(range(50))))
    sender, other = launch(objects, 2, device="cpu")
    for found in (sender, other):
        for name in ("all_gather_object", "broadcast_object_list"):
            n_sent = 2 / 2 if name.startswith("all") else 1 / 2
            assert n_sent * (size + 8) <= found[name] <= n_sent * (size + 8) + 64, name
    assert size + 8 <= sender["send_object_list"] <= size + 8 + 64 and other["send_object_list"] == 0


def groups_made_in_a_block() -> float:
    with record_traffic() as traffic:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2), group=group)
    return traffic.sent_bytes()


@pytest.mark.parametrize("network", [None, "1 Gb/s, 10 us"])
def test_a_new_group_writes_next_to_nothing(network):
    for sent in launch(groups_made_in_a_block, 2, device="cpu", network=network and simulated(network)):
        assert 8 <= sent < 256


def methods_are_torchs_again() -> bool:
    before = [vars(dist.Store)[name] for name in ("set", "add")]
    with record_traffic(), record_traffic():
        pass
    return before == [vars(dist.Store)[name] for name in ("set", "add")]


def test_nothing_stays_behind():
    assert launch(methods_are_torchs_again, 1, device="cpu") == [True]
