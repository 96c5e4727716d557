"""A worker of a DataLoader is killed, as by the kernel when the host has no memory left."""

import os
import signal

from torch.utils.data import DataLoader, Dataset


class Greedy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    list(DataLoader(Greedy(), num_workers=1))
