"""The two collectives of one tensor in, one tensor out, under the names that they have had since torch 2.13, or before.

Source: torch.distributed.reduce_scatter_single and all_gather_single; before, reduce_scatter_tensor and
all_gather_into_tensor.
"""

import torch.distributed as dist

reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
