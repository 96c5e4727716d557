"""The cost model of collectives beside published timings: how far it is off, and NCCL's own tuner."""

import pytest

from shardbench.published_collectives import RANGES, cluster, rows, summary, tuner_s
from shardsim.closed_forms import nccl_s

LARGE = list(RANGES)[-1]


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return rows()


def test_most_tables_are_evidence(found):
    tables = {row["what"]: row["used"] for row in found}
    assert list(tables.values()).count("fit") == 2 and len(tables) == 23
    assert sum(len(row["ratios"]) for row in found) == 279


def test_the_middle_errors(found):
    """At most 20% inside a node; between nodes no worse than what NCCL itself expects."""
    errors = summary(found)
    assert errors["inside a node"]["off"] < 0.10
    assert errors["between nodes"]["off"] <= errors["between nodes"]["tuner_off"]


def test_large_messages_are_within_a_tenth_where_nccls_tuner_is(found):
    large = [row for row in found if row["range"] == LARGE and row["used"] == "predicted"]
    both = [pair for row in large for pair in zip(row["ratios"], row["tuner_ratios"], strict=True)]
    hits = [abs(ours - 1) <= 0.1 for ours, tuner in both if abs(tuner - 1) <= 0.1]
    assert len(hits) > 80 and sum(hits) >= 0.95 * len(hits)


def test_the_range_holds_most_times_between_nodes_that_the_model_misses(found):
    middle = [row for row in found if row["range"] == "1 to 32 MiB" and row["nodes"] > 1]
    times = sum(len(row["ratios"]) for row in middle)
    assert sum(row["in_range"] * len(row["ratios"]) for row in middle) / times > 0.8


def test_the_tuner_by_hand():
    """Two of its sums: 79 hops and 32 MiB on LL128; NVLS on one node."""
    ten_by_eight = {"source": "xxrjun", "gpu": "H100", "nodes": 10, "gpus_per_node": 8, "kind": "all_gather"}
    latency_s = (14 + 70 * 1.9 + 9 * 4.0) * 1e-6
    assert tuner_s(ten_by_eight, 1 << 25) == pytest.approx(latency_s + (1 << 25) / (0.92 * 360e9) * 79 / 80)
    one_node = ten_by_eight | {"nodes": 1, "kind": "all_reduce"}
    assert tuner_s(one_node, 1 << 33) == pytest.approx(23e-6 + (1 << 33) / (330e9 * 5 / 6))
    assert nccl_s(cluster(one_node), "all_reduce", 1 << 33) == pytest.approx(tuner_s(one_node, 1 << 33), rel=0.01)
