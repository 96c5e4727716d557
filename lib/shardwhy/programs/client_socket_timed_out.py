"""A rank looks for rank 0 at an address where nothing listens."""

import datetime
import socket

import torch.distributed as dist

with socket.socket() as nobody:  # a port that is taken, but not listened on
    nobody.bind(("localhost", 0))
    port = nobody.getsockname()[1]
    dist.TCPStore("localhost", port, is_master=False, timeout=datetime.timedelta(seconds=3))
