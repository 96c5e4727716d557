"""The data set raises an error in a worker of the DataLoader."""

from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise ValueError(f"sample {index} cannot be read")


if __name__ == "__main__":
    list(DataLoader(Broken(), num_workers=1))
