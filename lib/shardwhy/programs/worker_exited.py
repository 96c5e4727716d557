"""A worker of a DataLoader ends in the middle of its work."""

import os

from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        os._exit(1)


if __name__ == "__main__":
    list(DataLoader(Leaves(), num_workers=1))
