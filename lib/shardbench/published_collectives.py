"""The cost model of collectives compared with published timings, and NCCL's own estimate of the same timings.

`shardsim/published_collectives.json` has the timings. NCCL's estimate is that of its tuner (src/graph/tuning.cc and
src/enqueue.cc, 2.2x), which chooses an algorithm and a protocol by it. It is repeated here for H100 and GH200: rings
over 360 GB/s of NVLink, cards at 96% of their bandwidth, 24 channels in a node and 16 between nodes. AWS's plugin tells
NCCL that its network takes 75 us (aws-ofi-nccl, platform_data_map), which is more than messages take.
"""

import json
from collections.abc import Iterator
from math import inf, log2
from pathlib import Path
from statistics import median

import shardsim
from shardsim.closed_forms import IN_SHARE, OUT_SHARE, PLATEAU, PROTOCOLS, Cluster, nccl_range_s, nccl_s
from shardsim.machines import MACHINES

FILE = Path(shardsim.__file__).with_name("published_collectives.json")
MIB = 1 << 20
RANGES = {"1 to 512 KiB": MIB, "1 to 32 MiB": 64 * MIB, "64 to 128 MiB": 256 * MIB, "256 MiB to 8 GiB": inf}
CARDS = {  # each source's network cards; the latency of alps' Slingshot is taken to be InfiniBand's
    "xxrjun": MACHINES["dgx-h100"].between,
    "aws": MACHINES["aws-p5"].between,
    "a3-mega": MACHINES["gcp-a3-mega"].between,
    "alps": MACHINES["dgx-a100"].between,
}

# The tuner's corrections of a tree's bandwidth, for 64 B and each size twice the last
TREES = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
LL_MOST = (87.7e9, 22.5e9, 19e9)  # bytes/s on 1 node, on 2, on more
TREE_MOST, TREE_LL128_MOST, RING_LL128_MOST = (38.7e9, 41.4e9, 36e9), (36.7e9, 36.7e9, 29e9), 36.7e9  # of a channel


def rows() -> list[dict]:
    """Return a row for each table and range of sizes.

    `off` and `tuner_off` are the middle errors of the model and of NCCL's tuner, |predicted / measured - 1|. `ratios`
    are predicted / measured. `in_range` is the share of times between the least and the most that `nccl_range_s`
    allows, with a tenth of margin each way.
    """
    tables = json.loads(FILE.read_text(encoding="utf-8"))["tables"]
    return [row for table in tables for row in _rows(table)]


def summary(found: list[dict]) -> dict[str, dict[str, float]]:
    """Return the middle errors over all times that were not fitted, inside a node and between nodes."""
    result = {}
    for where, inside in (("inside a node", True), ("between nodes", False)):
        mine = [row for row in found if row["used"] == "predicted" and (row["nodes"] == 1) == inside]
        ours, tuner = ([r for row in mine for r in row[name]] for name in ("ratios", "tuner_ratios"))
        result[where] = {"n": len(ours), "off": _off(ours), "tuner_off": _off(tuner)}
    return result


def cluster(table: dict) -> Cluster:
    m, k, port, card = table["nodes"], table["gpus_per_node"], MACHINES["dgx-h100"].inside, CARDS[table["source"]]
    cards = (card.latency_s, card.bandwidth_bytes_per_s * OUT_SHARE, k)
    port_bandwidth = port.bandwidth_bytes_per_s * IN_SHARE
    return Cluster(port.latency_s, port_bandwidth, m, k, *cards, nvls=table["gpu"] != "GH200")


def _rows(table: dict) -> Iterator[dict]:
    c, kind = cluster(table), table["kind"]
    times = [(table["first_bytes"] << i, us * 1e-6) for i, us in enumerate(table["us"])]
    low = 0.0
    for name, high in RANGES.items():
        chosen = [(n_bytes, s) for n_bytes, s in times if low <= n_bytes < high]
        low = high
        if chosen:
            ratios = [nccl_s(c, kind, n_bytes) / s for n_bytes, s in chosen]
            tuner = [tuner_s(table, n_bytes) / s for n_bytes, s in chosen]
            within = [_within(nccl_range_s(c, kind, n_bytes), s) for n_bytes, s in chosen]
            yield {
                "what": f"{table['nodes']}x{table['gpus_per_node']} {table['gpu']} ({table['source']}), {kind}",
                "nodes": table["nodes"],
                "used": table["used"],
                "range": name,
                "off": round(_off(ratios), 4),
                "tuner_off": round(_off(tuner), 4),
                "in_range": round(sum(within) / len(within), 4),
                "ratios": [round(ratio, 4) for ratio in ratios],
                "tuner_ratios": [round(ratio, 4) for ratio in tuner],
            }


def tuner_s(table: dict, full_bytes: float) -> float:
    """Seconds that NCCL's tuner expects."""
    choices = [choice for choice in PROTOCOLS if choice[0] == "ring" or table["kind"] == "all_reduce"]
    switch = table["gpu"] != "GH200" and table["gpus_per_node"] > 1
    return min(_tuner_s(table, full_bytes, *choice) for choice in choices if choice[0] != "nvls" or switch)


def _tuner_s(table: dict, full_bytes: float, algorithm: str, protocol: str) -> float:
    m, k, reduces = table["nodes"], table["gpus_per_node"], table["kind"] == "all_reduce"
    card, p = CARDS[table["source"]], PROTOCOLS[algorithm, protocol]
    n, f, few, channels = m * k, 2 if reduces else 1, min(m, 3) - 1, 24 if m == 1 else 16
    inside, cards = 360e9, 0.96 * k * card.bandwidth_bytes_per_s
    plugin_s = 75e-6 if table["source"] == "aws" else 0.0
    out_s = p.out_s + (2 if protocol == "Simple" else 1) * plugin_s
    if algorithm == "nvls":
        most = inside * 330 / 360 if m == 1 else min(inside * 330 / 360, cards / (1 if m == 2 else 2))
        return p.start_s + 2 * int(log2(m)) * out_s + full_bytes / (most * 5 / 6)
    bandwidth = inside if m == 1 else min(inside, 2 * cards if m == 2 and algorithm == "tree" and k > 1 else cards)
    if algorithm == "ring":
        if protocol == "LL":
            bandwidth = min(LL_MOST[few], bandwidth / (4 if m > 1 or reduces else 3))
        if protocol == "LL128":
            bandwidth = min(bandwidth * (0.7 if k < 2 else 0.92), channels * RING_LL128_MOST)
        post_s = 1e-6 * (3 if protocol == "Simple" else 1) if m > 1 else 0.0
        latency_s = p.start_s + f * (n - m) * max(p.in_s, post_s) + f * (m - 1) * out_s
        plateau = PLATEAU if protocol == "Simple" and m > 1 and reduces else 1.0
        return plateau * latency_s + full_bytes / bandwidth * f * (n - 1) / n
    bandwidth = min(0.92 * bandwidth, channels * TREE_MOST[few])
    if protocol == "LL":
        bandwidth = min(bandwidth / 3.8, LL_MOST[few])
    if protocol == "LL128":
        bandwidth = min(bandwidth * (7 / 9 if m == 1 else 120 / 128), channels * TREE_LL128_MOST[few])
    size = int(log2(full_bytes / 64))
    bandwidth *= TREES[protocol][size] if size < len(TREES[protocol]) else 1.0
    hop_in_s, hop_out_s, start_s = p.in_s, out_s, p.start_s
    if protocol == "Simple":  # of a piece of 256 KiB
        hop_in_s, hop_out_s, start_s = 28e-6, 28e-6 + 2 * plugin_s, 0.0
    return start_s + 2 * ((k - 1) * hop_in_s + int(log2(m)) * hop_out_s) + 2 * full_bytes / bandwidth


def _within(least_and_most: tuple[float, float], seconds: float) -> bool:
    least, most = least_and_most
    return 0.9 * least <= seconds <= 1.1 * most


def _off(ratios: list[float]) -> float:
    return median(abs(ratio - 1) for ratio in ratios)
