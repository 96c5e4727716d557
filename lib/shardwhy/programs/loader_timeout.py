"""A data worker that takes longer than the loader waits."""

import time

from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        time.sleep(20)
        return i


if __name__ == "__main__":
    list(DataLoader(Slow(), num_workers=1, timeout=2))
