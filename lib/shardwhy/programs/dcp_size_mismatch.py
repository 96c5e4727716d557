"""DCP is asked for a tensor of another shape than the saved one."""

import tempfile

import torch
import torch.distributed.checkpoint as dcp

from shardlab import launch


def load(folder):
    dcp.save({"weight": torch.ones(4)}, checkpoint_id=folder)
    dcp.load({"weight": torch.ones(6)}, checkpoint_id=folder)


with tempfile.TemporaryDirectory() as folder:
    launch(load, 2, folder, device="cpu", timeout_s=20)
