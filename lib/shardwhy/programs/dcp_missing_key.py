"""DCP is asked for a tensor that the checkpoint does not have."""

import tempfile

import torch
import torch.distributed.checkpoint as dcp

from shardlab import launch


def load(folder):
    dcp.save({"model": {"weight": torch.ones(4)}}, checkpoint_id=folder)
    dcp.load({"model": {"weight": torch.ones(4), "bias": torch.ones(4)}}, checkpoint_id=folder)


with tempfile.TemporaryDirectory() as folder:
    launch(load, 2, folder, device="cpu", timeout_s=20)
