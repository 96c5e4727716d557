"""spawn gets a function that is defined inside another one."""

import torch.multiprocessing as mp


def main():
    def train(rank):
        print(rank)

    mp.spawn(train, nprocs=2)


if __name__ == "__main__":
    main()
