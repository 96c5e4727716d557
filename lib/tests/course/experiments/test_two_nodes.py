"""Two agents of torchrun as two nodes: one loses power, and the other one goes on alone."""

import pytest

from shardcourse.experiments.two_nodes import torchrun_on_two_nodes

SCRIPT = """
import os, signal
import torch.distributed as dist
dist.init_process_group("gloo")
print("begins among", dist.get_world_size(), flush=True)
dist.barrier()
if os.environ.get("POWER_CUT"):
    os.kill(os.getppid(), signal.SIGKILL), os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print("ends among", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.night
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["begins among 2", "ends among 2"]),
        ({"POWER_CUT": "yes"}, ["begins among 2", "begins among 1", "ends among 1"]),
    ],
)
def test_the_first_node_s_lines(environment, expected, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = [line.strip() for line in torchrun_on_two_nodes(script, **environment)]
    assert [line for line in lines if " among " in line] == expected
