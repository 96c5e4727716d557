"""A process of mp.spawn is killed."""

import os
import signal

import torch.multiprocessing as mp


def train(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
