"""spawn gets a function that the new process does not find: it is defined below the main guard."""

import torch.multiprocessing as mp

if __name__ == "__main__":

    def train(rank):
        print(rank)

    mp.spawn(train, nprocs=2)
