"""FSDP1 gets a unit with bf16 weights and with 4-bit weights that are stored as uint8."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from shardlab import launch


class Quantized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)
        self.packed = torch.nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)


def wrap():
    FullyShardedDataParallel(Quantized(), use_orig_params=True, device_id=torch.device("cpu"))


if __name__ == "__main__":
    launch(wrap, 2, device="cpu")
