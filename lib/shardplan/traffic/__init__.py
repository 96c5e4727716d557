"""Bytes a rank sends in a step, by link: inside its node, between nodes, to and from its host and its host's drives.

Read `messages` (one kind of message), `groups` (who sends to whom, over which links), `units` (what a step gathers and
reduces), `eight_bits`, `data_parallel`, `model_parallel`, `muon`, `host`. `speed` computes how long it all takes.
"""

from shardplan.planned_job import Setup
from shardplan.stage_parameters import stages
from shardplan.traffic.data_parallel import data_parallel, unit_sends
from shardplan.traffic.host import host_bytes
from shardplan.traffic.messages import Send
from shardplan.traffic.model_parallel import (
    context_parallel,
    expert_parallel,
    pipeline_parallel,
    tensor_parallel,
    tied_matrix,
)
from shardplan.traffic.muon import muon_sends

__all__ = ["Send", "bytes_by_link", "sends", "unit_sends"]


def bytes_by_link(setup: Setup) -> dict[str, float]:
    """Bytes a rank sends or fetches in a step: "inside" and "between" nodes, to the "host" and its "nvme"."""
    found = sends(setup)
    between = sum(s.bytes_between for s in found)
    return {"inside": sum(s.bytes for s in found) - between, "between": between, **host_bytes(setup)}


def sends(setup: Setup) -> list[Send]:
    """All messages of a step, for the busiest stage's rank."""
    by_stage = []
    for stage in stages(setup):
        inside_blocks = (tensor_parallel, context_parallel, expert_parallel)
        of_model = (*(send for kind in inside_blocks for send in kind(setup, stage)), *pipeline_parallel(setup))
        by_stage.append(
            [*data_parallel(setup, stage), *of_model, *tied_matrix(setup, stage), *muon_sends(setup, stage)]
        )
    return max(by_stage, key=lambda found: sum(s.bytes for s in found))
