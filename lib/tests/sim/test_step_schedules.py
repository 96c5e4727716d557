"""The arithmetic of FSDP's step: cases by hand, bounds, and an oracle that queues what torch queues on its streams."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.bucket_overlap import bucket_timeline, ring_all_reduce_s
from shardsim.step_schedules import Unit, ddp_step, fsdp_step

ROOT = Unit("root", forward_s=2, backward_s=3, all_gather_s=4, reduce_scatter_s=5)
FREE_ROOT = Unit("root", 0, 0, 0, 0)


def blocks(n: int, forward_s=10, backward_s=20, all_gather_s=6, reduce_scatter_s=7, all_reduce_s=0.0) -> list[Unit]:
    costs = (forward_s, backward_s, all_gather_s, reduce_scatter_s, all_reduce_s)
    return [Unit(f"blocks.{i}", *costs) for i in range(n)]


def rows(step, lane) -> list[tuple]:
    return [(s.name, s.unit, s.start_s, s.end_s) for s in step.lane(lane)]


# --------------------------------------------------------------------------------------------------------- by hand


def test_one_block_by_hand():
    """Nothing overlaps but the reduce_scatter of the block, which the root's waits for."""
    step = fsdp_step(ROOT, blocks(1))
    assert rows(step, "link") == [
        ("all_gather", "root", 0, 4),
        ("all_gather", "blocks.0", 4, 10),
        ("all_gather", "blocks.0", 22, 28),  # the root's head has run; prefetched while its backward runs
        ("reduce_scatter", "blocks.0", 48, 55),
        ("reduce_scatter", "root", 55, 60),
    ]
    assert rows(step, "compute") == [
        ("forward", "blocks.0", 10, 20),
        ("forward", "root", 20, 22),
        ("backward", "root", 22, 25),
        ("backward", "blocks.0", 28, 48),
    ]
    assert step.end_s == 60


def test_two_blocks_prefetched_in_backward_by_hand():
    """Forward 2 (6 + 10). In backward the second gather and the first reduce_scatter hide behind 20 s of backward."""
    step = fsdp_step(FREE_ROOT, blocks(2))
    assert rows(step, "compute")[-2:] == [("backward", "blocks.1", 38, 58), ("backward", "blocks.0", 58, 78)]
    assert rows(step, "link")[-4:-1] == [
        ("all_gather", "blocks.0", 38, 44),
        ("reduce_scatter", "blocks.1", 58, 65),
        ("reduce_scatter", "blocks.0", 78, 85),
    ]
    assert step.end_s == 85


def test_two_blocks_without_prefetch_by_hand():
    """The second gather queues up behind the first reduce_scatter: both are waited for, 6 + 7 s more than with it."""
    step = fsdp_step(FREE_ROOT, blocks(2), backward_prefetch=0)
    assert rows(step, "link")[-4:-1] == [
        ("reduce_scatter", "blocks.1", 58, 65),
        ("all_gather", "blocks.0", 65, 71),
        ("reduce_scatter", "blocks.0", 91, 98),
    ]
    assert step.end_s == 85 + 6 + 7


def test_a_slow_link_lets_computation_wait_for_the_last_reduce_scatter():
    """100 s a reduce_scatter: block 2's must be through before block 1's is issued; block 0's gather is behind it."""
    step = fsdp_step(FREE_ROOT, blocks(3, reduce_scatter_s=100))
    assert rows(step, "compute")[-2:] == [("backward", "blocks.1", 74, 94), ("backward", "blocks.0", 180, 200)]
    assert [s.start_s for s in step.spans if s.name == "reduce_scatter"] == [74, 180, 280, 380]


def test_forward_prefetch_hides_gathers_behind_the_block_in_front():
    n = 4
    none, one = (fsdp_step(FREE_ROOT, blocks(n), forward_prefetch=k).end_s for k in (0, 1))
    assert none - one == n * 6 - 6, "all gathers of forward but the first"


def test_what_is_kept_after_forward_is_not_gathered_again():
    step = fsdp_step(ROOT, blocks(3), reshard_after_forward=False)
    assert [s.unit for s in step.spans if s.name == "all_gather"] == ["root", "blocks.0", "blocks.1", "blocks.2"]
    step = fsdp_step(ROOT, blocks(3))
    assert [s.unit for s in step.spans if s.name == "all_gather"].count("root") == 1, "torch keeps the root"
    step = fsdp_step(ROOT, blocks(3), root_reshards=True)
    assert [s.unit for s in step.spans if s.name == "all_gather"].count("root") == 2
    gather = [s for s in step.spans if (s.name, s.unit) == ("all_gather", "root")][1]
    head = next(s for s in step.spans if (s.name, s.unit) == ("backward", "root"))
    assert gather.end_s == head.start_s, "it is needed at once"


def test_hsdps_all_reduce_goes_beside_the_gathers_and_after_its_reduce_scatter():
    step = fsdp_step(FREE_ROOT, blocks(3, all_reduce_s=30))
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        (scatter,) = [s for s in step.spans if (s.name, s.unit) == ("reduce_scatter", block)]
        (reduce,) = [s for s in step.spans if (s.name, s.unit) == ("all_reduce", block)]
        assert reduce.start_s >= scatter.end_s
    # forward 48 s, gather 6, backward of block 2 20 and its reduce_scatter 7; from there on the outer link is busy
    assert step.end_s == 48 + 6 + 20 + 7 + 3 * 30


def test_a_host_that_runs_ahead_prefetches_by_itself_and_the_limit_holds_it_back():
    """Of n gathers only the first is waited for. Without the limit they follow each other without a pause."""
    units = blocks(6)
    limited, free = (
        fsdp_step(FREE_ROOT, units, host_runs_ahead=True, limit_all_gathers=limit) for limit in (True, False)
    )
    assert [s.end_s for s in limited.spans if s.name == "forward"] == [16, 26, 36, 46, 56, 66, 66]
    assert gathers(free) == [0, 6, 12, 18, 24, 30]
    assert gathers(limited) == [0, 6, 12, 18, 26, 36], "when the unit before the last begins to compute"


def gathers(step) -> list[float]:
    """When the all_gathers of the blocks start in forward."""
    return [s.start_s for s in step.spans if s.name == "all_gather"][1:7]


def test_ddp_by_hand():
    """Forward 5 s, backward 10 s, buckets after 4 and 10 s that take 8 and 2 s."""
    step = ddp_step(5, 10, [4, 10], [8, 2])
    assert rows(step, "link") == [("all_reduce", "bucket 0", 9, 17), ("all_reduce", "bucket 1", 17, 19)]
    assert (step.compute_s, step.end_s) == (15, 19)
    step = ddp_step(5, 10, [4, 10], [8, 2], overlap=False)
    assert rows(step, "link") == [("all_reduce", "bucket 0", 9, 17), ("all_reduce", "bucket 1", 23, 25)]
    assert (step.compute_s, step.end_s, step.overlapped_s) == (15, 25, 0)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 100)), min_size=1, max_size=8), st.integers(0, 10))
def test_ddps_step_is_forward_and_the_lessons_bucket_timeline(gradients, forward_s):
    """A bucket for each gradient; 4 ranks, 1 s a message, 3 bytes a second."""
    after, sizes = zip(*gradients, strict=True)
    ready = [sum(after[: i + 1]) for i in range(len(after))]
    costs = [ring_all_reduce_s(size, 4, 1.0, 3.0) for size in sizes]
    step = ddp_step(forward_s, ready[-1], ready, costs)
    expected = bucket_timeline([1] * len(sizes), list(sizes), ready, 4, 1.0, 3.0)
    for span, (start, end) in zip(step.lane("link"), expected, strict=True):
        assert (span.start_s - forward_s, span.end_s - forward_s) == pytest.approx((start, end))
    blocking = ddp_step(forward_s, ready[-1], ready, costs, overlap=False)
    assert blocking.end_s == pytest.approx(forward_s + ready[-1] + sum(costs))
    assert blocking.overlapped_s == pytest.approx(0, abs=1e-9)


# ---------------------------------------------------------------------------------------------------------- oracle


class Queues:
    """CUDA's rules and no more: a stream does in order what is queued on it; a communicator runs in order of issue."""

    def __init__(self):
        self.queued, self.clock, self.events = defaultdict(list), defaultdict(float), {}

    def run(self, stream, seconds, communicator=None):
        turn = None
        if communicator:
            turn = self.clock.setdefault(("issued", communicator), 0)
            self.clock["issued", communicator] += 1
        self.queued[stream].append(("run", (seconds, communicator, turn)))

    def record(self, stream):
        event = object()
        self.queued[stream].append(("record", event))
        return event

    def wait(self, stream, event):
        self.queued[stream].append(("wait", event))

    def finish(self) -> float:
        """Sweep over the streams until nothing is left."""
        latest, turns, free = 0.0, defaultdict(int), defaultdict(float)
        while any(self.queued.values()):
            left = sum(map(len, self.queued.values()))
            for stream, queue in self.queued.items():
                while queue:
                    what, item = queue[0]
                    if what == "record":
                        self.events[item] = self.clock[stream]
                    elif what == "wait":
                        if item not in self.events:
                            break
                        self.clock[stream] = max(self.clock[stream], self.events[item])
                    else:
                        seconds, communicator, turn = item
                        if communicator and turns[communicator] != turn:
                            break
                        start = max(self.clock[stream], free[communicator] if communicator else 0.0)
                        self.clock[stream] = start + seconds
                        free[communicator], turns[communicator] = start + seconds, turns[communicator] + 1
                        latest = max(latest, start + seconds)
                    queue.pop(0)
            assert sum(map(len, self.queued.values())) < left, "deadlock"
        return latest


def oracle(root, blocks, forward_prefetch, backward_prefetch, reshard_after_forward, root_reshards, host_runs_ahead):
    """FSDPState's and FSDPParamGroup's hooks, line by line, on Queues."""
    q, results, unsharded = Queues(), {}, set()
    all_gather_state, scatter_states, last = None, [], {}

    def issue(stream):  # a host that is the device gets here when it has computed what comes before
        if not host_runs_ahead:
            q.wait(stream, q.record("compute"))

    def unshard(u):
        if u in unsharded or u in results:
            return
        issue("gather")
        q.run("gather", u.all_gather_s, "shard")
        results[u] = q.record("gather")

    def wait_for_unshard(u, in_forward):
        nonlocal all_gather_state
        if u not in results:
            return
        if in_forward and all_gather_state:
            q.wait("gather", all_gather_state)
            all_gather_state = None
        q.wait("compute", results.pop(u))
        unsharded.add(u)
        copied_out = q.record("compute")
        if in_forward:
            all_gather_state = copied_out
        else:
            q.wait("gather", copied_out)

    def pre_forward(u, prefetch):
        unshard(u)
        wait_for_unshard(u, True)
        for other in prefetch:
            unshard(other)

    def pre_backward(u, prefetch):
        unshard(u)
        wait_for_unshard(u, False)
        for other in prefetch:
            unshard(other)

    def post_backward(u):
        unsharded.discard(u)
        while scatter_states:
            q.wait("compute", scatter_states.pop(0))
        q.wait("scatter", q.record("compute"))
        q.run("scatter", u.reduce_scatter_s, "shard")
        scatter_states.append(q.record("scatter"))
        last["scatter"] = scatter_states[-1]
        if u.all_reduce_s:
            q.wait("reduce", last["scatter"])
            q.run("reduce", u.all_reduce_s, "replicate")
            last["reduce"] = q.record("reduce")

    order = [root, *blocks]
    pre_forward(root, order[1 : 1 + forward_prefetch])
    for i, u in enumerate(blocks):
        pre_forward(u, blocks[i + 1 : i + 1 + forward_prefetch])
        q.run("compute", u.forward_s)
        if reshard_after_forward:
            unsharded.discard(u)
    q.run("compute", root.forward_s)
    if root_reshards:
        unsharded.discard(root)
    if all_gather_state:
        q.wait("gather", all_gather_state)
        all_gather_state = None
    backward = [root, *reversed(blocks)]
    for i, u in enumerate(backward):
        pre_backward(u, backward[i + 1 : i + 1 + backward_prefetch])
        q.run("compute", u.backward_s)
        if u is not root:
            post_backward(u)
    post_backward(root)
    return q.finish()


COSTS = st.integers(0, 20)
UNITS = st.lists(st.tuples(*[COSTS] * 5), min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {
        "forward_prefetch": st.integers(0, 3),
        "backward_prefetch": st.integers(0, 3),
        "reshard_after_forward": st.booleans(),
        "root_reshards": st.booleans(),
        "host_runs_ahead": st.booleans(),
    }
)


def named(costs) -> tuple[Unit, list[Unit]]:
    root, *others = (Unit(f"unit {i}", *c) for i, c in enumerate(costs))
    return root, others


@given(UNITS, OPTIONS)
def test_it_is_what_torchs_hooks_queue_on_their_streams(costs, options):
    units = named(costs)
    assert fsdp_step(*units, **options).end_s == oracle(*units, **options)


@given(UNITS, OPTIONS)
def test_bounds(costs, options):
    """Not before any queue has done all of its work; not after doing one thing at a time. A queue does just that."""
    step = fsdp_step(*named(costs), **options)
    total = 0.0
    queues = [("forward", "backward"), ("all_gather", "reduce_scatter"), ("all_reduce",)]
    for names in queues:
        mine = [s for s in step.spans if s.name in names]
        assert all(a.end_s <= b.start_s for a, b in zip(mine, mine[1:], strict=False))
        total += (busy := sum(s.end_s - s.start_s for s in mine))
        assert step.end_s >= busy
    assert step.end_s <= total
    assert sum(s.name == "reduce_scatter" for s in step.spans) == len(costs)


@given(UNITS, OPTIONS, st.integers(0, 4), st.integers(0, 5))
def test_no_cost_that_grows_makes_the_step_shorter(costs, options, which, unit):
    larger = [list(c) for c in costs]
    larger[unit % len(costs)][which] += 5
    before, after = (fsdp_step(*named(c), **options).end_s for c in (costs, larger))
    assert before <= after


@given(UNITS)
def test_a_free_network_leaves_computation(costs):
    free = [(forward, backward, 0, 0, 0) for forward, backward, *_ in costs]
    step = fsdp_step(*named(free))
    assert step.end_s == sum(map(sum, free))


@pytest.mark.parametrize("host_runs_ahead", [False, True])
def test_backward_prefetch_gains_what_computation_can_cover(host_runs_ahead):
    """n blocks, all alike, computation longer than both messages: n-1 gathers and reduce_scatters were waited for."""
    n, options = 5, {"host_runs_ahead": host_runs_ahead}
    without, with_it = (fsdp_step(FREE_ROOT, blocks(n), backward_prefetch=k, **options).end_s for k in (0, 1))
    assert without - with_it == (n - 1) * (6 + 7)
