"""A sharded checkpoint whose writing was interrupted has no file .metadata."""

import tempfile

import torch
import torch.distributed.checkpoint as dcp

from shardlab import launch


def load(folder):
    dcp.load({"weight": torch.ones(4)}, checkpoint_id=folder)


with tempfile.TemporaryDirectory() as folder:
    launch(load, 2, folder, device="cpu", timeout_s=20)
