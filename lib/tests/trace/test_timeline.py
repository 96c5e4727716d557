"""Timelines: what is exposed and what is overlapped, which unit a span belongs to, and files for Perfetto."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcourse.exercises.trace import communication, markdown
from shardtrace.labels_to_spans import Label, Queued, Sent, timeline
from shardtrace.range_labels import meaning
from shardtrace.timeline import Span, Timeline, union, without
from shardtrace.trace_file import trace_events, write_trace


def spans(lane: str, *intervals: tuple[float, float], name: str = "") -> list[Span]:
    return [Span(lane, name, start, end) for start, end in intervals]


def sums(*given: Span) -> tuple[float, float, float, float]:
    t = Timeline(0, given)
    return t.communication_s, t.exposed_s, t.overlapped_s, t.compute_s


# ------------------------------------------------------------------------------------------- exposed against overlapped


@pytest.mark.parametrize(
    ("compute", "link", "communication", "exposed"),
    [
        ([], [(0, 4)], 4, 4),
        ([(0, 4)], [], 0, 0),
        ([(0, 4)], [(0, 4)], 4, 0),
        ([(0, 10)], [(2, 3), (5, 6)], 2, 0),  # hidden inside
        ([(2, 3)], [(0, 10)], 10, 9),  # all around
        ([(0, 4)], [(3, 6)], 3, 2),  # one end hidden
        ([(5, 8)], [(3, 6)], 3, 2),  # the other end
        ([(0, 4)], [(4, 6)], 2, 2),  # neighbours
        ([(0, 2), (4, 6)], [(1, 5)], 4, 2),  # a hole in computation
        ([(0, 4)], [(3, 6), (4, 7)], 4, 3),  # two at once count once
        ([(0, 4)], [(1, 9), (2, 3)], 8, 5),  # one within the other
        ([(0, 5), (1, 2), (4, 7)], [(6, 8)], 2, 1),  # computation that overlaps itself
    ],
)
def test_known_answers(compute, link, communication, exposed):
    expected = (communication, exposed, communication - exposed)
    assert sums(*spans("compute", *compute), *spans("link", *link))[:3] == pytest.approx(expected)


def test_waits_are_neither_computation_nor_communication():
    t = Timeline(0, tuple(spans("compute", (0, 2)) + spans("wait", (2, 6)) + spans("link", (4, 6))))
    assert (t.compute_s, t.communication_s, t.exposed_s, t.wait_s, t.duration_s) == (2, 2, 2, 4, 6)


def test_nothing_recorded():
    t = Timeline(0, ())
    assert (t.duration_s, t.communication_s, t.exposed_s, t.share(), t.share("all_gather")) == (0, 0, 0, 0, 0)
    assert [row.kind for row in communication(t)] == ["all"]


def test_a_part_is_cut_out():
    t = Timeline(0, tuple(spans("compute", (0, 4), (6, 8)) + spans("link", (3, 7)))).within(2, 6.5)
    assert [(s.start_s, s.end_s) for s in t.spans] == [(2, 4), (6, 6.5), (3, 6.5)]
    assert (t.communication_s, t.exposed_s) == (3.5, 2)


moments = st.integers(0, 40)
intervals = st.lists(st.tuples(moments, moments).map(sorted).map(tuple), max_size=8)


@given(intervals, intervals)
def test_sums_are_those_of_a_count_of_moments(compute, link):
    """Ends are whole numbers: so every unit interval is inside of a span or outside."""

    def covered(some):
        return {m for start, end in some for m in range(start, end)}

    a, c = covered(compute), covered(link)
    assert sums(*spans("compute", *compute), *spans("link", *link)) == (len(c), len(c - a), len(c & a), len(a))
    assert covered(without(union(link), union(compute))) == c - a


times = st.floats(0, 1e6, allow_nan=False)
real_intervals = st.lists(st.tuples(times, times).map(sorted).map(tuple), max_size=8)


@given(real_intervals, real_intervals, st.tuples(times, times).map(sorted))
def test_exposed_and_overlapped_make_up_communication(compute, link, more):
    before = Timeline(0, tuple(spans("compute", *compute) + spans("link", *link)))
    after = Timeline(0, (*before.spans, *spans("compute", tuple(more))))
    assert before.exposed_s + before.overlapped_s == pytest.approx(before.communication_s)
    assert -1e-6 <= before.exposed_s <= before.communication_s + 1e-6
    assert after.exposed_s <= before.exposed_s + 1e-6, "to compute more exposes no more"
    assert after.communication_s == before.communication_s


@given(real_intervals)
def test_a_union_is_disjoint_and_in_order(some):
    found = union(some)
    assert all(a[1] < b[0] for a, b in zip(found, found[1:], strict=False))
    assert found == union(found)


# ------------------------------------------------------------------------------------------------- from labels to spans


def host(*labels: Label, sent=(), queued=()) -> list[tuple]:
    found = timeline(0, labels, sent, queued).spans
    return [(s.lane, s.name, s.unit, s.start_s, s.end_s) for s in found if s.lane != "link"]


def units(*labels: Label, issued_s: list[float]) -> list[str]:
    sent = [Sent("all_reduce", 4, at, at, at, at + 0.1) for at in issued_s]
    return [s.unit for s in timeline(0, labels, sent).lane("link")]


@pytest.mark.parametrize(
    ("label", "means"),
    [
        ("forward (blocks.0)", ("forward", "blocks.0")),
        ("backward (root)", ("backward", "root")),
        ("FSDP::all_gather (blocks.1)", ("copy", "blocks.1")),
        ("FSDP::all_gather", ("copy", "root")),
        ("FSDP::all_gather ()", ("copy", "root")),
        ("FSDP::backward_prefetch for blocks.2", ("copy", "blocks.2")),
        ("FullyShardedDataParallel._pre_forward", ("copy", "")),
        ("DistributedDataParallel.forward", ("forward", "root")),
        ("Optimizer.step#AdamW.step", ("optimizer", "")),
        ("wait", ("wait", "")),
        ("Optimizer.zero_grad#AdamW.zero_grad", None),
        ("ProfilerStep#3", None),
        ("my own label (of mine)", None),
    ],
)
def test_what_labels_mean(label, means):
    assert meaning(label) == means


def test_the_innermost_label_says_what_the_host_does():
    labels = [Label("forward (root)", 0, 10), Label("forward (blocks.0)", 2, 5), Label("my own label", 3, 4)]
    assert host(*labels) == [
        ("compute", "forward", "root", 0, 2),
        ("compute", "forward", "blocks.0", 2, 5),
        ("compute", "forward", "root", 5, 10),
    ]
    assert host(*labels) == host(*reversed(labels)), "in whatever order they come"


def test_of_labels_that_begin_together_the_shorter_is_within():
    found = host(Label("forward (blocks.0)", 0, 2), Label("forward (root)", 0, 5))
    assert found == [("compute", "forward", "blocks.0", 0, 2), ("compute", "forward", "root", 2, 5)]


def test_where_no_label_is_the_host_does_nothing():
    assert host(Label("forward (root)", 0, 1), Label("Optimizer.step#SGD.step", 3, 4)) == [
        ("compute", "forward", "root", 0, 1),
        ("compute", "optimizer", "", 3, 4),
    ]


def test_trifles_go_to_what_adjoins_them_and_time_is_kept():
    labels = [
        Label("forward (root)", 0, 10),
        Label("forward (blocks.0)", 0.00001, 5),
        Label("FSDP::x (root)", 3, 3.00001),
    ]
    found = host(*labels)
    assert [one[1:3] for one in found] == [("forward", "blocks.0"), ("forward", "root")]
    assert sum(end - start for *_, start, end in found) == pytest.approx(10)


def test_a_wait_says_for_what():
    """It asks at 1; the last rank at 3; the links are free at 4; it is through at 6."""
    sent = [Sent("all_gather", 8, 1, 3, 4, 6), Sent("all_gather", 8, 0, 0, 0, 2)]
    labels = [Label("forward (root)", 0, 8), Label("FSDP::all_gather (blocks.0)", 0.5, 1.5), Label("wait", 2.5, 6.25)]
    assert host(*labels, sent=sent) == [
        ("compute", "forward", "root", 0, 0.5),
        ("compute", "copy", "blocks.0", 0.5, 1.5),
        ("compute", "forward", "root", 1.5, 2.5),
        ("wait", "slower rank", "blocks.0", 2.5, 3),
        ("wait", "link taken", "blocks.0", 3, 4),
        ("wait", "all_gather", "blocks.0", 4, 6.25),
        ("compute", "forward", "root", 6.25, 8),
    ]


def test_a_wait_for_all_ranks_to_be_there():
    sent = [Sent("reduce_scatter", 8, 1, 3, 4, 6)]
    assert ("wait", "slower rank", "bucket 0", 2, 3.5) in host(
        Label("backward (root)", 0, 5), Label("wait", 2, 3.5), sent=sent
    )


def test_ddp_waits_in_its_last_callback_and_then_copies():
    sent = [Sent("all_reduce", 8, 1, 1, 2, 5), Sent("all_reduce", 8, 1, 1, 0, 2)]
    labels = [Label("backward (root)", 0, 7), Label("DDP::finalize", 3, 6)]
    assert host(*labels, sent=sent) == [
        ("compute", "backward", "root", 0, 3),
        ("wait", "all_reduce", "bucket 0", 3, 5),
        ("compute", "copy", "root", 5, 6),
        ("compute", "backward", "root", 6, 7),
    ]


def test_ddp_waits_for_its_last_bucket():
    """Two arrive while it waits: at 4, and at 5."""
    sent = [Sent("all_reduce", 8, 1, 1, 2, 4), Sent("all_reduce", 8, 1.5, 1.5, 4, 5)]
    labels = [Label("backward (root)", 0, 7), Label("DDP::finalize", 3, 6)]
    assert host(*labels, sent=sent) == [
        ("compute", "backward", "root", 0, 3),
        ("wait", "link taken", "bucket 1", 3, 4),
        ("wait", "all_reduce", "bucket 1", 4, 5),
        ("compute", "copy", "root", 5, 6),
        ("compute", "backward", "root", 6, 7),
    ]


def test_a_recomputation_without_a_name_is_that_of_the_backward_around_it():
    labels = [Label("backward (root)", 0, 9), Label("backward (blocks.1)", 1, 8), Label("recompute", 2, 5)]
    assert ("compute", "recompute", "blocks.1", 2, 5) in host(*labels)


def test_which_unit_a_collective_serves():
    gather = [Label("forward (blocks.0)", 0, 2), Label("FSDP::all_gather (blocks.1)", 1, 2)]
    assert units(*gather, issued_s=[0.5, 1.5, 3]) == ["", "blocks.1", ""]
    prefetch = [Label("backward (root)", 0, 9), Label("FSDP::pre_backward (blocks.2)", 1, 4)]
    prefetch += [Label("FSDP::backward_prefetch for blocks.1", 2, 3), Label("FSDP::all_gather (blocks.1)", 2.2, 2.8)]
    assert units(*prefetch, issued_s=[2.5]) == ["blocks.1"]


def test_buckets_are_counted_in_each_backward():
    labels = [Label("backward (root)", 0, 4), Label("backward (blocks.0)", 1, 3), Label("backward (root)", 6, 9)]
    assert units(*labels, issued_s=[0.5, 2, 3.5, 7, 8]) == ["bucket 0", "bucket 1", "bucket 2", "bucket 0", "bucket 1"]
    assert units(*labels, issued_s=[5]) == [""], "after backward: of no bucket"


def test_where_the_host_runs_ahead_the_device_computes():
    labels = [Label("forward (blocks.0)", 0, 1), Label("forward (blocks.1)", 1, 2), Label("wait", 2, 9)]
    assert host(*labels, queued=[Queued(0.5, 0.5, 4), Queued(1.5, 4, 8)]) == [
        ("compute", "forward", "blocks.0", 0.5, 4),
        ("compute", "forward", "blocks.1", 4, 8),
    ]


# ---------------------------------------------------------------------------------------------------- shares, and files


def example() -> list[Timeline]:
    """Two ranks; on the second, two collectives are under way at once."""
    one = [
        Span("compute", "forward", 100.0, 104.0, "blocks.0"),
        Span("link", "all_gather", 101.0, 103.0, "blocks.1", 4_000_000, 100.5),
        Span("wait", "slower rank", 104.0, 105.0, "blocks.1"),
        Span("compute", "backward", 105.0, 110.0, "blocks.1"),
        Span("link", "reduce_scatter", 108.0, 112.0, "blocks.1", 2_000_000, 107.0),
    ]
    other = [*one, Span("link", "all_reduce", 109.0, 114.0, "blocks.1", 1_000_000, 104.5)]
    return [Timeline(0, tuple(one)), Timeline(1, tuple(sorted(other, key=lambda s: s.start_s)))]


def test_shares_of_the_step():
    rows = {row.kind: row for row in communication(example()[1])}
    assert list(rows) == ["all_reduce", "reduce_scatter", "all_gather", "all"], "the longest first, all last"
    gather, reduce, both = rows["all_gather"], rows["reduce_scatter"], rows["all"]
    assert (gather.count, gather.bytes, gather.total_s, gather.exposed_s) == (1, 4_000_000, 2, 0)
    assert (reduce.total_s, reduce.exposed_s) == (4, 2)
    assert (both.count, both.bytes, both.total_s, both.exposed_s) == (3, 7_000_000, 8, 4)
    assert (both.share, both.exposed_share) == pytest.approx((8 / 14, 4 / 14))
    assert gather.share == example()[1].share("all_gather") == pytest.approx(2 / 14)


def test_the_table_has_a_line_for_each_kind():
    lines = markdown(communication(example()[0])).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| reduce_scatter | 1 | 2.00 | 4000.0 | 2000.0 | 33% | 17% |"


def test_a_trace_file_that_perfetto_takes(tmp_path):
    """Required fields; times from 0 on; every thread named; what is in a thread nests."""
    write_trace(tmp_path / "trace.json", example())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    timed = [e for e in events if e["ph"] != "M"]
    assert min(e["ts"] for e in timed) == 0
    assert all(e["dur"] > 0 and e["name"] and e["cat"] in ("compute", "wait", "link") for e in timed if e["ph"] == "X")
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in timed} <= set(named)
    assert len({tid for _, tid in named} - {0, 1}) == len(named), "Perfetto knows a thread by its id alone"
    assert Counter(named.values()) == {"compute": 2, "wait": 2, "link": 2, "link 2": 1}
    for thread in named:
        slices = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in timed if e["ph"] == "X" and (e["pid"], e["tid"]) == thread
        )
        assert all(a[1] <= b[0] for a, b in zip(slices, slices[1:], strict=False)), named[thread]


def test_all_ranks_of_a_trace_share_one_clock():
    """0 is where the first of them begins, and who begins 2 s later does so there, too."""
    early, late = (Timeline(rank, (Span("compute", "forward", at, at + 1.0),)) for rank, at in ((0, 7.0), (1, 9.0)))
    for timelines in ([early, late], [late, early]):
        begins = {e["pid"]: e["ts"] for e in trace_events(timelines) if e["ph"] == "X"}
        assert begins == {0: 0.0, 1: 2e6}


def test_arrows_lead_from_asking_to_the_collective():
    events = list(trace_events(example()))
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == 5
    assert starts.keys() == ends.keys()
    slices = [e for e in events if e["ph"] == "X"]
    for flow, s in starts.items():
        f = ends[flow]
        assert s["ts"] <= f["ts"]
        assert any(_in(s, e) and e["cat"] != "link" for e in slices), "an arrow without a slice is not drawn"
        assert any(_in(f, e) and e["ts"] == f["ts"] and e["cat"] == "link" for e in slices)
    assert {(s["pid"], s["ts"]) for s in starts.values()} >= {(0, 0.5e6), (1, 4.5e6)}, "the host asked while it waited"


def _in(event: dict, slice: dict) -> bool:
    same = (event["pid"], event["tid"]) == (slice["pid"], slice["tid"])
    return same and slice["ts"] <= event["ts"] <= slice["ts"] + slice["dur"]


def test_bytes_under_way_end_at_nothing():
    counters = [e for e in trace_events(example()) if e["ph"] == "C" and e["pid"] == 1]
    assert [e["args"]["bytes"] / 1e6 for e in counters] == [4, 0, 2, 3, 1, 0]


def test_one_that_ends_late_stays_in_its_thread():
    """0.1 ms after the next has started; 10 ms are another matter."""
    for late_s, threads in ((1e-4, {1002}), (1e-2, {1002, 1003})):
        links = Span("link", "all_gather", 0, 1 + late_s), Span("link", "all_gather", 1, 2)
        slices = [e for e in trace_events([Timeline(0, links)]) if e["ph"] == "X"]
        assert {e["tid"] for e in slices} == threads
        assert sorted(e["ts"] for e in slices) == [0, 1e6]
