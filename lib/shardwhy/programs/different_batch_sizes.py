"""accelerate sends batches of different sizes to the ranks."""

import os
import subprocess
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
samples = [torch.zeros(length) for length in (5, 7)]
config = DataLoaderConfiguration(dispatch_batches=True)
loader = Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(samples, batch_size=1))
list(loader)
