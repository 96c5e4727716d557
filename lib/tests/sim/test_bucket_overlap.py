"""The arithmetic of overlap against cases worked out by hand, and against the simulated link's own formula."""

from itertools import combinations

import pytest

from shardsim.bucket_overlap import bucket_timeline, finish_time, ring_all_reduce_s
from shardsim.network import Network

# Two ranks, 1 s a message, 1 byte a second: a bucket of b bytes takes 2 * (1 + b / 2) = 2 + b seconds.
LINK = {"world_size": 2, "latency_s": 1.0, "bandwidth_bytes_per_s": 1.0}


@pytest.mark.parametrize(
    ("n_bytes", "world_size", "seconds"),
    [(8, 1, 0.0), (8, 2, 2 * (0.5 + 8 / 2 / 4)), (8, 4, 6 * (0.5 + 8 / 4 / 4)), (0, 4, 6 * 0.5)],
)
def test_ring_is_2_n_minus_1_messages_of_an_nth(n_bytes, world_size, seconds):
    assert ring_all_reduce_s(n_bytes, world_size, latency_s=0.5, bandwidth_bytes_per_s=4.0) == pytest.approx(seconds)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("n_bytes", [0, 1, 1000, 25 << 20])
def test_prediction_and_simulation_charge_the_same(world_size, n_bytes):
    network = Network.parse("10 Gb/s, 20 us", world_size)
    predicted = ring_all_reduce_s(n_bytes, world_size, network.inside.latency_s, network.inside.bandwidth_bytes_per_s)
    assert network.seconds("all_reduce", n_bytes, range(world_size)) == pytest.approx(predicted)


@pytest.mark.parametrize(
    ("assignment", "sizes", "ready", "spans"),
    [
        ([1], [3], [4.0], [(4, 9)]),
        ([2], [3, 5], [1.0, 4.0], [(4, 14)]),  # waits for its last gradient
        ([1, 1], [3, 5], [1.0, 10.0], [(1, 6), (10, 17)]),  # the link waits for backward
        ([1, 1], [3, 5], [1.0, 2.0], [(1, 6), (6, 13)]),  # backward waits for the link
        ([1, 2, 1], [1, 2, 3, 4], [1.0, 2.0, 3.0, 20.0], [(1, 4), (4, 11), (20, 26)]),
        ([4], [1, 2, 3, 4], [1.0, 2.0, 3.0, 20.0], [(20, 32)]),
    ],
)
def test_timeline_by_hand(assignment, sizes, ready, spans):
    assert bucket_timeline(assignment, sizes, ready, **LINK) == spans
    assert finish_time(assignment, sizes, ready, **LINK) == spans[-1][1]


def assignments(n: int) -> list[list[int]]:
    """Every way to cut n gradients, in order, into buckets."""
    cuts = [c for k in range(n) for c in combinations(range(1, n), k)]
    return [[b - a for a, b in zip((0, *cut), (*cut, n), strict=True)] for cut in cuts]


SIZES, READY = [40, 10, 10, 80, 10, 10, 60], [0.5, 1.0, 4.0, 4.5, 6.0, 9.0, 9.5]


def finish(assignment, latency_s, bandwidth=20.0):
    return finish_time(assignment, SIZES, READY, 4, latency_s, bandwidth)


def test_every_assignment_lies_between_the_bounds_of_the_arithmetic():
    """Not before the link has carried it all, nor the last gradient's bucket; not after doing one thing at a time."""
    assert len(assignments(7)) == 64
    for latency_s in (0.0, 0.1, 1.0, 10.0):
        for assignment in assignments(7):
            costs = [ring_all_reduce_s(b, 4, latency_s, 20.0) for b in sums(assignment)]
            assert READY[0] + sum(costs) <= finish(assignment, latency_s) + 1e-9
            assert READY[-1] + costs[-1] <= finish(assignment, latency_s) + 1e-9
            assert finish(assignment, latency_s) <= READY[-1] + sum(costs) + 1e-9


def sums(assignment):
    ends = [sum(assignment[: i + 1]) for i in range(len(assignment))]
    return [sum(SIZES[end - count : end]) for end, count in zip(ends, assignment, strict=True)]


def test_the_best_plan_has_small_buckets_on_a_quick_link_and_one_on_a_slow_one():
    best = {latency_s: min(assignments(7), key=lambda p, s=latency_s: finish(p, s)) for latency_s in (0.0, 0.3, 100.0)}
    assert finish(best[0.0], 0.0) == pytest.approx(finish([1] * 7, 0.0)), "free messages: never wait for a neighbour"
    assert best[100.0] == [7], "a message dearer than all the bytes: send one"
    assert 1 < len(best[0.3]) < 7, "in between, neither"
