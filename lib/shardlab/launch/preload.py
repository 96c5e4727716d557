"""What the forkserver imports before it forks any rank, so that no rank has to: seconds, paid once.

Not imported by the launcher itself, which needs little of it.
"""

import torch._dynamo  # noqa: F401  the flight recorder wants it for its stack traces
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401
import torch.nn.parallel  # noqa: F401

import shardlab.launch.rank_main  # noqa: F401
