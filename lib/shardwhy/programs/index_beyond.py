"""A list of groups that was written for one node, and a rank of the second."""

import torch.distributed as dist

dist.init_process_group("gloo", init_method="tcp://localhost:0", rank=0, world_size=1)
groups = [dist.new_group([0])]
rank_on_two_nodes = 9
dist.barrier(group=groups[rank_on_two_nodes // 8])
