"""Rank 1 opens an index that rank 0 has not yet written: there is no barrier."""

import tempfile
from pathlib import Path

import torch.distributed as dist

from shardlab import launch

folder = Path(tempfile.mkdtemp()) / "index-cache"


def train(index):
    if dist.get_rank() == 1:
        index.read_bytes()


launch(train, 2, folder / "43d5bc_doc_idx.npy", device="cpu", timeout_s=20)
