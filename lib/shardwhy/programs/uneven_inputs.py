"""One rank has fewer batches; Join tells all ranks instead of hanging."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from shardlab import launch


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([model], throw_on_early_termination=True):
        for _ in range(5 + dist.get_rank()):
            model(torch.ones(2, 4)).sum().backward()


if __name__ == "__main__":
    launch(train, 2, device="cpu")
