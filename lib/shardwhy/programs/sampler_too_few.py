"""A sampler that fills up its indices once, as PyTorch's did before 1.8: 2 samples for 8 ranks."""

from torch.utils.data import DistributedSampler


class OldSampler(DistributedSampler):
    def __iter__(self):
        indices = list(range(len(self.dataset)))
        indices += indices[: self.total_size - len(indices)]
        assert len(indices) == self.total_size
        return iter(indices[self.rank : self.total_size : self.num_replicas])


list(OldSampler(range(2), num_replicas=8, rank=0))
