"""Processes are spawned outside of `if __name__ == "__main__":`."""

import torch.multiprocessing as mp


def train(rank):
    print(rank)


mp.spawn(train, nprocs=2)
