"""Imports that the forkserver makes before it forks a rank: their seconds are paid once, not by every rank.

The launcher itself does not import this file, since it needs little of it.
"""

import torch._dynamo  # noqa: F401  the flight recorder wants it for its stack traces
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401
import torch.nn.parallel  # noqa: F401

import shardlab.launch.rank_main  # noqa: F401
