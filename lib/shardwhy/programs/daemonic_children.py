"""A data set that starts a process, in a data worker."""

import multiprocessing

from torch.utils.data import DataLoader, Dataset


class Nested(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        multiprocessing.Process(target=print).start()
        return i


if __name__ == "__main__":
    list(DataLoader(Nested(), num_workers=1))
