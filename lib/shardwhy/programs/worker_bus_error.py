"""A worker of a DataLoader gets a bus error, as when /dev/shm is full."""

import os
import signal

from torch.utils.data import DataLoader, Dataset


class FullShm(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGBUS)


if __name__ == "__main__":
    list(DataLoader(FullShm(), num_workers=1))
