"""accelerate gets a model with the device map of device_map='auto', on more than one rank."""

import os
import subprocess
import sys

import torch
from accelerate import Accelerator

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
model = torch.nn.Linear(4, 4)
model.hf_device_map = {"first half": 0, "second half": 1}  # what from_pretrained(device_map="auto") sets
Accelerator(cpu=True).prepare(model)
