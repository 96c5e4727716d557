"""A rank is there before rank 0, or rank 0 is elsewhere: connection refused, again and again."""

import datetime
import os
import socket

os.environ.update(TORCH_CPP_LOG_LEVEL="INFO", TORCH_DISTRIBUTED_DEBUG="DETAIL")  # read when torch is imported

import torch.distributed as dist  # noqa: E402

with socket.socket() as nobody:  # a port that is taken, but not listened on
    nobody.bind(("localhost", 0))
    port = nobody.getsockname()[1]
    dist.TCPStore("localhost", port, is_master=False, timeout=datetime.timedelta(seconds=3))
