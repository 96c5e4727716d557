"""The checks of exercises accept the answers that stand in the notebooks.

The other tests of a check plant mistakes. Some plant them in an answer of their own: the notebook's is tried here.
Others plant them in the folded answer itself (3a, 4, 5a, 5b, 8a, 8b, 11a, 11b, 14a, 14b, 15a, 15b, 16, 19), and try
it there.
"""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises import (
    file_adamw,
    first_spike,
    flops,
    fp32_master,
    host_optimizer,
    loss_scaler,
    mesh_by_host,
    nccl_log,
    peak,
    same_call,
    statistics,
)

NAMES = {"torch": torch, "dist": dist}
ANSWERS: dict[str, tuple[str, Callable]] = {  # notebook: the function or class, and what checks it
    "00_start_here.ipynb": ("mean_std_max_owner", statistics.check_statistics),
    "01_where_the_memory_goes.ipynb": ("peak_bytes", peak.check_peak),
    "07a_mixed_precision.ipynb": ("MyMaster", fp32_master.check_master),
    "07b_sums_and_fp8.ipynb": ("MyScaler", loss_scaler.check_scaler),
    "09a_offload.ipynb": ("HostAdamW", host_optimizer.check_host_optimizer),
    "09b_offload_to_drives.ipynb": ("adamw_in_chunks", file_adamw.check_file_adamw),
    "10a_many_nodes.ipynb": ("check_mesh", mesh_by_host.problems),
    "10b_what_another_node_is_worth.ipynb": ("faults", nccl_log.problems),
    "12_profiling.ipynb": ("my_flops", flops.problems),
    "13a_hangs.ipynb": ("my_checked", same_call.problems),
    "13b_out_of_memory_and_spikes.ipynb": ("my_first_spike", first_spike.problems),
}
CONSTANTS = {name: getattr(file_adamw, name) for name in ("BETA1", "BETA2", "CHUNK", "DECAY", "EPS", "LR", "N")}


@pytest.mark.parametrize("lesson", ANSWERS)
def test_the_folded_answer_is_accepted(lesson):
    name, check = ANSWERS[lesson]
    said = check(defined(answer(lesson, name), name, **NAMES, **CONSTANTS))
    assert said == [] or said.lower().startswith("right"), said
