"""A loader with shuffle=True and no DistributedSampler has a RandomSampler, which has no epochs."""

from torch.utils.data import DataLoader

loader = DataLoader(range(8), shuffle=True)
loader.sampler.set_epoch(0)
