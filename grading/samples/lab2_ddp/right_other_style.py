# %% token_ddp
from torch.nn.parallel import DistributedDataParallel


class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
        self.counts = []

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum, n_tokens):
        last = self.ddp.require_backward_grad_sync
        self.counts.append(n_tokens)
        loss_sum.backward()
        if last:
            total = torch.stack(self.counts).sum()
            dist.all_reduce(total)
            for p in self.ddp.module.parameters():
                if p.grad is not None:
                    p.grad *= dist.get_world_size() / total
            self.counts = []


# %% plan_buckets
from functools import cache
from itertools import accumulate


def plan_buckets(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    before = [0, *accumulate(sizes_bytes)]

    @cache
    def best(n):
        """(finish, plan) of the first n gradients."""
        if n == 0:
            return 0.0, ()

        def with_last_bucket_from(i):
            free, plan = best(i)
            per_hop = latency_s + (before[n] - before[i]) / world_size / bandwidth_bytes_per_s
            return max(free, ready_s[n - 1]) + 2 * (world_size - 1) * per_hop, (*plan, n - i)

        return min(map(with_last_bucket_from, range(n)))

    for n in range(len(sizes_bytes)):  # fill the cache from below, or the recursion goes too deep
        best(n)
    return list(best(len(sizes_bytes))[1])
