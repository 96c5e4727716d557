"""mp.spawn tells which process has failed."""

import torch.multiprocessing as mp


def train(rank):
    if rank == 1:
        raise ValueError("the real error")


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
