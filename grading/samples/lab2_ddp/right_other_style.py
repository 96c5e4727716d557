# %% token_ddp
class TokenDDP(nn.Module):
    """One flat buffer for all gradients, of which a bucket is a slice; they are divided before they are sent."""

    def __init__(self, net, bucket_cap_mb):
        super().__init__()
        self.module, self.last, self.counts, self.place = net, True, [], {}
        with torch.no_grad():
            for tensor in net.state_dict().values():
                dist.broadcast(tensor, 0)
        trained = [p for p in reversed(list(net.parameters())) if p.requires_grad]
        flat = torch.zeros(sum(p.numel() for p in trained), device=trained[0].device)
        begin = end = 0
        opened = []
        for i, p in enumerate(trained):
            opened.append((p, end))
            end += p.numel()
            if (end - begin) * 4 >= bucket_cap_mb * 2**20 or i == len(trained) - 1:
                bucket = {"flat": flat[begin:end], "size": len(opened), "seen": 0}
                self.place |= {q: (flat[at : at + q.numel()].view(q.shape), bucket) for q, at in opened}
                begin, opened = end, []
        for p in trained:
            p.register_post_accumulate_grad_hook(self.arrived)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        self.last = False
        try:
            yield
        finally:
            self.last = True

    def backward(self, loss_sum, n_tokens):
        self.counts.append(n_tokens)
        if self.last:
            self.total = torch.stack(self.counts).sum()
            dist.all_reduce(self.total)
            self.counts, self.works = [], []
        loss_sum.backward()
        if self.last:
            print("waiting for", len(self.works), "buckets")
            for work in self.works:
                work.wait()

    def arrived(self, p):
        if not self.last:
            return
        view, bucket = self.place[p]
        with torch.no_grad():
            torch.div(p.grad, self.total, out=view)
        p.grad = view
        bucket["seen"] += 1
        if bucket["seen"] == bucket["size"]:
            bucket["seen"] = 0
            self.works.append(dist.all_reduce(bucket["flat"], async_op=True))


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
