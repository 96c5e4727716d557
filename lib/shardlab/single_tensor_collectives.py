"""reduce_scatter and all_gather from one tensor to one tensor, by their names in torch 2.13 or in older versions.

Source: torch.distributed.reduce_scatter_single and all_gather_single; before 2.13, reduce_scatter_tensor and
all_gather_into_tensor.
"""

import torch.distributed as dist

reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
