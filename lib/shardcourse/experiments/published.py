"""Published times of NCCL's collectives next to our model's, for lesson 10b."""

import json
from pathlib import Path

import shardsim
from shardsim.closed_forms import Cluster, nccl_s
from shardsim.machines import machine

TABLES = Path(shardsim.__file__).with_name("published_collectives.json")


def published_all_gathers(nodes: int = 10) -> list[tuple[int, int, float, float]]:
    """Return (GPUs a node, bytes, measured seconds, predicted seconds) of all_gathers on H100 nodes of one cluster.

    Of each table the smallest and the largest size. No constant of the model was fitted on these tables.
    """
    rows = []
    for table in json.loads(TABLES.read_text())["tables"]:
        if (table["gpu"], table["kind"], table["nodes"], table["used"]) != ("H100", "all_gather", nodes, "predicted"):
            continue
        k, us = table["gpus_per_node"], table["us"]
        cluster = Cluster.of(machine("dgx-h100"), nodes, k, k)
        for i in (0, len(us) - 1):
            n_bytes = table["first_bytes"] << i
            rows.append((k, n_bytes, us[i] * 1e-6, nccl_s(cluster, "all_gather", n_bytes)))
    return rows
