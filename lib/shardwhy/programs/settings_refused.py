"""The timeout is given in seconds, and c10d wants a timedelta."""

import torch.distributed as dist

dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1, timeout=1800)
