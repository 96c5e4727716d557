"""The flight recorder's reader and the hang report on NCCL's records, which a generator writes as torch does."""

import os
import pickle
from types import SimpleNamespace

import pytest
from nccl_ring import NcclRing

from shardlab.launch import flight_recorder
from shardlab.launch.hang_report import faulty_ranks, first_disagreement, laggard, stuck_collectives
from shardlab.measure.traffic import record_traffic, wire_bytes

WORLD = {"0": [0, 1, 2]}


def read(ring: NcclRing, tmp_path, **how) -> flight_recorder.Log:
    path = tmp_path / f"nccl_trace_rank_{ring.rank}"
    path.write_bytes(pickle.dumps(ring.dump(**how)))
    return flight_recorder.read_dump(path)


def rings(groups: dict[str, list[int]] = WORLD) -> dict[int, NcclRing]:
    ranks = sorted({r for members in groups.values() for r in members})
    return {r: NcclRing(r, {name: members for name, members in groups.items() if r in members}) for r in ranks}


def one_call(name: str, *args, rank: int = 0, tmp_path) -> tuple:
    ring = NcclRing(rank, WORLD)
    getattr(ring, name)(*args)
    return tuple((c.kind, c.input_bytes, c.output_bytes, c.state) for c in read(ring, tmp_path))


CALLS = {
    "all_reduce": ([5], ("all_reduce", 20, 20)),
    "all_gather_into_tensor": ([5], ("all_gather", 20, 60)),
    "reduce_scatter_tensor": ([5], ("reduce_scatter", 60, 20)),
    "gathers_coalesced": ([[5], [2]], ("all_gather", 28, 84)),
    "coalescing_manager": ([[5], [2]], ("all_reduce", 28, 28)),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_call_is_one_collective_with_its_bytes(name, tmp_path):
    argument, expected = CALLS[name]
    assert one_call(name, argument, tmp_path=tmp_path) == ((*expected, "finished"),)


def test_lists_of_equal_shapes(tmp_path):
    gather, reduce = one_call("even_lists", [5], tmp_path=tmp_path)
    assert (gather, reduce) == (("all_gather", 20, 60, "finished"), ("reduce_scatter", 60, 20, "finished"))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_uneven_list_is_one_call_and_this_ranks_share_is_its_own(rank, tmp_path):
    shapes, total = [[7], [1], [4]], 48
    share = 4 * shapes[rank][0]
    reduced = one_call("uneven_reduce_scatter", shapes, rank=rank, tmp_path=tmp_path)
    gathered = one_call("uneven_all_gather", shapes, rank=rank, tmp_path=tmp_path)
    assert reduced == (("reduce_scatter", total, share, "finished"),)
    assert gathered == (("all_gather", share, total, "finished"),)


def test_what_an_uneven_list_puts_on_the_wire(tmp_path):
    """As Lab 3's check of traffic counts it: two thirds of the whole, of three ranks."""
    ring = NcclRing(1, WORLD)
    ring.uneven_reduce_scatter([[7], [1], [4]])
    ring.uneven_all_gather([[7], [1], [4]])
    assert [wire_bytes(c, 3) for c in read(ring, tmp_path)] == [pytest.approx(32)] * 2


def test_ranks_agree_on_uneven_lists(tmp_path):
    logs = {}
    for rank, ring in rings().items():
        ring.uneven_all_gather([[7], [1], [4]])
        ring.uneven_reduce_scatter([[7], [1], [4]])
        ring.all_to_all([rank + 1], [3])
        ring.scatter([4])
        logs[rank] = read(ring, tmp_path)
    assert first_disagreement(logs) is None
    assert [c.kind for c in logs[2]] == ["all_gather", "reduce_scatter", "all_to_all", "scatter"]


def test_a_scatter_is_recorded_the_other_way_round(tmp_path):
    assert one_call("scatter", [4], rank=0, tmp_path=tmp_path) == (("scatter", 48, 16, "finished"),)
    assert one_call("scatter", [4], rank=1, tmp_path=tmp_path) == (("scatter", 0, 16, "finished"),)


def test_a_barrier_carries_nothing_and_is_called_one(tmp_path):
    ring = NcclRing(0, WORLD)
    ring.barrier()
    (c,) = read(ring, tmp_path)
    assert (c.signature, c.input_bytes, c.output_bytes) == ("barrier", 0, 0)


def test_a_call_that_hangs_has_the_state_of_its_closing_entry(tmp_path):
    for state, expected in (("scheduled", "issued"), ("started", "started"), ("completed", "finished")):
        ring = NcclRing(0, WORLD)
        ring.uneven_reduce_scatter([[7], [1], [4]], state=state)
        assert [c.state for c in read(ring, tmp_path)] == [expected]


def test_batched_messages_are_no_collective(tmp_path):
    """Rank 0 sends nothing: its next collective's number must not be compared with the closing entry of a batch."""
    logs = {}
    for rank, ring in rings().items():
        ring.all_reduce([5])
        if rank > 0:
            ring.batch_send_recv([3])
            ring.send([3], 0)
        ring.all_reduce([6])
        logs[rank] = read(ring, tmp_path)
    assert [c.kind for c in logs[0]] == ["all_reduce"] * 2
    assert [(c.kind, c.input_bytes, c.output_bytes) for c in logs[1]] == [
        ("all_reduce", 20, 20),
        ("send", 12, 0),
        ("recv", 0, 12),
        ("send", 12, 0),
        ("all_reduce", 24, 24),
    ]
    assert [c.state for c in logs[1][1:3]] == ["finished"] * 2, "the closing entry knows it"
    assert first_disagreement(logs) is None
    assert laggard(logs) is None
    assert stuck_collectives(logs) == ""


# --------------------------------------------------------------------------------------------------------- both rings


def both_rings(monkeypatch, ring: NcclRing, gloo: list[dict]) -> None:
    dumps = {"_dump_fr_trace": {"entries": gloo}, "_dump_nccl_trace": ring.dump()}
    functions = {name: (lambda dump=dump: pickle.dumps(dump)) for name, dump in dumps.items()}
    monkeypatch.setattr(flight_recorder, "c10d", SimpleNamespace(**functions))
    monkeypatch.setattr(flight_recorder, "_members", lambda name: tuple(ring.groups[name]))


def of_gloo(seq: int, at_ns: int) -> dict:
    sizes = {f"{side}_{what}": [] for side in ("input", "output") for what in ("sizes", "dtypes")}
    names = {"profiling_name": "gloo:barrier", "process_group": ("0", "default_pg"), "frames": []}
    return names | sizes | {"collective_seq_id": seq, "time_created_ns": at_ns, "retired": True}


def test_both_rings_are_read_in_the_order_of_time(monkeypatch):
    """A CUDA build writes gloo's barriers and NCCL's collectives of one group into two rings, each numbered from 1."""
    ring = NcclRing(0, WORLD)
    ring.all_reduce([5], at_ns=2_000)
    ring.all_gather_into_tensor([5], at_ns=4_000)
    both_rings(monkeypatch, ring, [of_gloo(1, 1_000), of_gloo(2, 3_000)])
    log = flight_recorder.collectives()
    assert [(c.backend, c.seq, c.kind) for c in log] == [
        ("gloo", 1, "barrier"),
        ("nccl", 1, "all_reduce"),
        ("gloo", 2, "barrier"),
        ("nccl", 2, "all_gather"),
    ]
    assert [c.kind for c in flight_recorder.collectives(last=1)] == ["all_gather"]
    slower = [c for c in log if c.backend == "gloo"]
    assert first_disagreement({0: log, 1: slower}) is None, "the same number in two rings is two calls"


def test_each_ring_overflows_for_itself(monkeypatch):
    """The rings hold four entries each; an uneven list takes four of NCCL's, and the barriers none of these."""
    monkeypatch.setattr(flight_recorder, "kept_entries", lambda: 5)
    ring, later_ns = NcclRing(0, WORLD), 10**19
    ring.uneven_reduce_scatter([[7], [1], [4]], at_ns=later_ns)
    both_rings(monkeypatch, ring, [of_gloo(seq, later_ns) for seq in (1, 2, 3)])
    with record_traffic() as traffic:
        pass
    assert traffic.kinds() == {"reduce_scatter": 1, "barrier": 3}
    ring.all_reduce([5], at_ns=later_ns)
    both_rings(monkeypatch, ring, [])
    with pytest.raises(RuntimeError, match="keeps 5 collectives"), record_traffic():
        pass


# ------------------------------------------------------------------------------------------------- who is to blame


def test_a_missing_rank_is_seen_by_its_status_where_the_dump_has_only_open_calls(tmp_path):
    logs = {}
    for rank, ring in rings().items():
        for _ in range(3):
            ring.all_reduce([5])
        if rank != 1:
            ring.all_gather_into_tensor([5], state="scheduled")
        logs[rank] = read(ring, tmp_path, only_active=True)
    assert logs[1] == []
    assert faulty_ranks(logs) == [1]
    text = stuck_collectives(logs)
    assert "The last that rank 1 called is #3, and it is over." in text
    assert "called nothing" not in text


def test_parts_of_a_call_that_is_over_are_over_where_its_closing_entry_is_not_in_the_dump(tmp_path):
    ring = NcclRing(0, WORLD)
    ring.uneven_reduce_scatter([[7], [1], [4]])
    ring.all_reduce([5], state="scheduled")
    log = read(ring, tmp_path, only_active=True)
    assert [(c.seq, c.state) for c in log] == [*[(1, "finished")] * 3, (2, "issued")]
    assert "waits in #2" in stuck_collectives({0: log})


def test_a_gpu_that_stopped_is_named_when_its_peers_are_through(tmp_path):
    logs = {}
    for rank, ring in rings().items():
        ring.all_reduce([5])
        ring.all_reduce([6], state="scheduled" if rank == 2 else "completed")
        logs[rank] = read(ring, tmp_path, only_active=True)
    assert faulty_ranks(logs) == [2]
    verdict = stuck_collectives(logs).splitlines()[-1]
    assert verdict == "rank 2 waits in #2, which ranks 0, 1 finished: its peers are through, look at the GPU of rank 2"


def test_one_verdict_over_many_groups(tmp_path):
    """Six ranks in six groups. Rank 4 has stopped calling: the pairs of others wait for it, directly or not."""
    groups = {"0": [0, 1, 2, 3, 4, 5], "1": [0, 1], "2": [2, 3], "3": [4, 5], "4": [0, 2, 4], "5": [1, 3, 5]}
    logs = {}
    for rank, ring in rings(groups).items():
        mine = [name for name in ring.groups if name != "0"]
        for name in mine:
            ring.all_reduce([5], group=name)
        if rank != 4:
            for name in mine:
                ring.all_reduce([6], group=name, state="scheduled")
            ring.all_reduce([7], state="scheduled")
        logs[rank] = read(ring, tmp_path, only_active=True)
    text = stuck_collectives(logs)
    assert faulty_ranks(logs) == [4]
    assert "Over all groups: Look at rank 4: others wait for it, and it waits for nobody." in text
    assert text.endswith("are stuck, too.")
    assert len(text.splitlines()) < 10


def test_a_status_that_counts_messages_too_is_not_believed(tmp_path):
    """After 100 messages rank 1's status says 100. It has not called collective 2."""
    logs = {}
    for rank, ring in rings().items():
        ring.all_reduce([5])
        for _ in range(100):
            ring.send([3], 0)
        if rank != 1:
            ring.all_reduce([6], state="scheduled")
        logs[rank] = read(ring, tmp_path, only_active=rank == 1)
    del logs[1][:]  # of the messages, none is open
    assert faulty_ranks(logs) == [1]


def test_a_dump_cannot_run_anything(tmp_path):
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(made),)

    path = tmp_path / "nccl_trace_rank_0"
    for content in (pickle.dumps(Evil()), b"", b"text", pickle.dumps([1, 2]), pickle.dumps({"entries": 3})):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no dump of one rank's flight recorder"):
            flight_recorder.read_dump(path)
        assert not made.exists()
