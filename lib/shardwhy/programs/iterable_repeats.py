"""Each worker of the DataLoader reads the whole IterableDataset."""

from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(8))  # not split by worker

    def __len__(self):
        return 8


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=None, num_workers=2)
    print(len(loader), "promised;", sorted(int(x) for x in loader))
