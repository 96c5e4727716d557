"""Zero-bubble schedules and async TP: the plan's closed forms beside a small simulation, which knows none of them."""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest

from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.speed import async_tensor, speed_plan
from shardplan.speed.collectives import seconds
from shardplan.speed.kernels import weight_gradients_s
from shardplan.speed.micro_batch import messages_s
from shardplan.stage_parameters import in_flight, stages
from shardplan.strategy import SCHEDULES
from shardplan.traffic.model_parallel import pipeline_parallel, tensor_sends

# Forwards before the first backward, and by how many micro-batches W is late, on rank r of p
ORDERS = {
    "1f1b": (lambda p, r: p - r, lambda p, r: 0),
    "zb-h1": (lambda p, r: p - r, lambda p, r: r),
    "zb-h2": (lambda p, r: 2 * (p - r) - 1, lambda p, r: 2 * r),
}
TIMES = [{"F": 1.0, "B": 1.0, "W": 1.0}, {"F": 1.0, "B": 1.2, "W": 0.9}, {"F": 1.0, "B": 1.5, "W": 0.5}]


def order(name: str, p: int, m: int, rank: int) -> list[tuple[str, int]]:
    """A rank's actions. In 1F1B each W follows its B, and B is sent only after it."""
    ahead, late = (of(p, rank) for of in ORDERS[name])
    actions = [("F", i) for i in range(ahead)]
    for i in range(m):
        actions += [("B", i), *([("W", i - late)] if i >= late else [])]
        actions += [("F", i + ahead)] if i + ahead < m else []
    return actions + [("W", i) for i in range(m - late, m)]


def idle_of_first(name: str, p: int, m: int, times: dict[str, float]) -> float:
    """Seconds in which the first rank waits, from its first action to its last."""
    lists = [order(name, p, m, rank) for rank in range(p)]
    sent_by = {"F": "F", "B": "W" if name == "1f1b" else "B"}  # a whole backward sends when W is done

    @cache
    def end(rank: int, at: int) -> float:
        if at < 0:
            return 0.0
        kind, i = lists[rank][at]
        source = {"F": rank - 1, "B": rank + 1}.get(kind, -1)
        there = 0 <= source < p
        arrives = end(source, lists[source].index((sent_by[kind], i))) if there else 0.0
        return times[kind] + max(end(rank, at - 1), arrives)

    return end(0, len(lists[0]) - 1) - m * sum(times.values())


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 12), (8, 16)])
def test_a_simulation_waits_and_keeps_what_the_table_says(name, p, m):
    filled, (a, b) = SCHEDULES[name]
    for times in TIMES:
        due = (p - 1) * max(0.0, sum(times.values()) - filled * times["W"])
        assert idle_of_first(name, p, m, times) == pytest.approx(due)
    for rank in range(p if name != "1f1b" else 1):
        kept = accumulate((kind == "F") - (kind == "W") for kind, _ in order(name, p, m, rank))
        assert max(kept) == a * p - b


def pipeline(name: str) -> Setup:
    return setup_of("8B", "dgx-h100", 8, pipeline=4, accumulation=8, schedule=name, seq_len=4096)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plans_bubble_is_that_of_the_simulation(name):
    """F + B of the plan's slowest stage, and W of its weights, on the simulation's ranks; messages come on top."""
    setup = pipeline(name)
    last = stages(setup)[1]
    parts = speed_plan(setup).parts_s
    w = weight_gradients_s(setup, last.n_blocks, last.last)
    others = (parts["computation"] + parts["exposed communication"]) / 8 - w
    hops = sum(2 * seconds(setup, send) for send in pipeline_parallel(setup))
    found = idle_of_first(name, 4, 8, {"F": others / 2, "B": others / 2, "W": w})
    assert parts["bubble"] == pytest.approx(found + 3 * hops, rel=2e-3)


def test_a_late_w_costs_memory():
    setups = {name: pipeline(name) for name in SCHEDULES}
    assert [in_flight(s) for s in setups.values()] == [(4, 1), (4, 4), (7, 7)]
    held = [memory_plan(s).allocated_bytes for s in setups.values()]
    assert held[0] < held[1] < held[2]  # the last stage of 1F1B keeps one only


# -------------------------------------------------------------------------------------------------- tensor parallelism


def in_a_ring(n: int, hop_s: float, chunk_s: float) -> float:
    """Simulate one rank's ring: the next chunk travels while this one is multiplied. Seconds beyond the products'."""
    now = arrived = 0.0
    for chunk in range(n):
        now = max(now, arrived)
        arrived = now + hop_s if chunk < n - 1 else now
        now += chunk_s
    return now - n * chunk_s


@pytest.mark.parametrize("seq_len", [512, 8192])
@pytest.mark.parametrize("n", [2, 8])
def test_what_is_not_hidden_is_what_a_ring_waits(n, seq_len):
    """Forward of a block: four messages, each with its own products."""
    setup = setup_of("8B", "dgx-h100", 8, tensor=n, seq_len=seq_len, async_tensor=True)
    gather_s, scatter_s = (seconds(setup, send) for send in tensor_sends(setup, False)["forward"])
    due = 0.0
    for gathers, products in async_tensor._groups(setup):
        chunk_s = sum(async_tensor.product_s(setup, p) for p in products) / n
        due += in_a_ring(n, (gather_s if gathers else scatter_s) / (n - 1), chunk_s)
    assert messages_s(setup, False)[0] == pytest.approx(due, abs=1e-12)


def test_the_groups_of_a_block_are_its_four_pairs():
    setup = setup_of("8B", "dgx-h100", 8, tensor=8, async_tensor=True)
    names = [(gathers, [p.name.split(".")[1] for p in products]) for gathers, products in async_tensor._groups(setup)]
    assert names == [
        (True, ["query", "key", "value"]),
        (False, ["out"]),
        (True, ["gate", "up"]),
        (False, ["down"]),
    ]


def test_rings_save_time_and_send_the_same():
    plain, ring = (setup_of("70B", "dgx-h100", 64, tensor=8, seq_len=8192, async_tensor=on) for on in (False, True))
    before, after = speed_plan(plain), speed_plan(ring)
    assert after.bytes_by_link == before.bytes_by_link
    assert after.parts_s["exposed communication"] < before.parts_s["exposed communication"]
    assert memory_plan(ring).allocated_bytes == memory_plan(plain).allocated_bytes
    slow = replace(ring, machine=replace(ring.machine, inside=replace(ring.machine.inside, bandwidth_bytes_per_s=1e9)))
    assert speed_plan(slow).parts_s["exposed communication"] > before.parts_s["exposed communication"]
