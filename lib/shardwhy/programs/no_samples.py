"""The data set is empty: a wrong path, or a filter that drops everything."""

from torch.utils.data import DataLoader

DataLoader([], shuffle=True)
