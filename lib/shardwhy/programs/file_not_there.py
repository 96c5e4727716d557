"""Only one rank has the file: its disk is not shared."""

import tempfile
from pathlib import Path

import torch.distributed as dist

from shardlab import launch


def train():
    with tempfile.TemporaryDirectory() as folder:  # each rank has its own
        file = Path(folder, "part-0.bin")
        if dist.get_rank() == 0:
            file.write_bytes(b"tokens")
        dist.barrier()
        file.read_bytes()


launch(train, 2, device="cpu", timeout_s=20)
