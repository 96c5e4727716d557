"""State of a training, the same for every strategy: in memory, whole on one rank, and on disk.

Read in this order: `flat_interval_chunks` (a tensor that ranks hold in intervals), `sharded_state` (every parameter
and its states by name), `barrier_and_rank_0_result` (find ranks that miss a collective), `full_state` (whole on
rank 0), `checkpoint` (save and resume).
"""

from shardlab.state.checkpoint import latest, load, load_from, save
from shardlab.state.full_state import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from shardlab.state.sharded_state import sharded_state_dict

__all__ = [
    "full_optimizer_state_dict",
    "full_state_dict",
    "latest",
    "load",
    "load_from",
    "load_full_optimizer_state_dict",
    "load_full_state_dict",
    "save",
    "sharded_state_dict",
]
