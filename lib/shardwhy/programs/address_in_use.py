"""Two jobs on one machine want the same port."""

import socket

import torch.distributed as dist

with socket.socket() as first_job:
    first_job.bind(("", 0))
    first_job.listen()
    port = first_job.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=0, world_size=1)
