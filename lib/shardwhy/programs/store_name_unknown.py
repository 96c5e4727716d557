"""MASTER_ADDR is a name that this machine cannot resolve."""

import datetime

import torch.distributed as dist

dist.TCPStore("node-1.invalid", 29500, is_master=False, timeout=datetime.timedelta(seconds=3))
