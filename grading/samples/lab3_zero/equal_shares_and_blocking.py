# %% owned
def owned(sizes, shares, rank):
    n = sum(sizes)
    first, last = n * rank // len(shares), n * (rank + 1) // len(shares)
    pieces = []
    for i, size in enumerate(sizes):
        before = sum(sizes[:i])
        start, end = max(0, first - before), min(size, last - before)
        if start < end:
            pieces.append((i, start, end))
    return pieces


# %% zero2
class FlatBucket:
    def __init__(self, params, shares):
        self.params, self.missing = params, set(params)
        sizes = [p.numel() for p in params]
        self.all = [owned(sizes, shares, r) for r in range(dist.get_world_size())]
        self.lengths = [sum(end - start for _, start, end in pieces) for pieces in self.all]
        self.mine = [nn.Parameter(p) for p in self.pieces(dist.get_rank())]

    def pieces(self, rank):
        return [self.params[i].detach().view(-1)[start:end] for i, start, end in self.all[rank]]

    @torch.no_grad()
    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.params]) / dist.get_world_size()
        received = torch.empty(self.lengths[dist.get_rank()])
        dist.reduce_scatter(received, list(flat.split(self.lengths)))
        at = 0
        for p in self.mine:
            p.grad = received[at : at + p.numel()] + (0 if p.grad is None else p.grad)
            at += p.numel()
        for p in self.params:
            p.grad = None
        self.missing = set(self.params)


class Zero2:
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        cap = int(bucket_cap_mb * 2**20)
        self.buckets = [FlatBucket(ps, shares) for ps in assign_buckets(list(module.parameters()), cap, cap)]
        self.optim = optimizer_class([p for b in self.buckets for p in b.mine], **defaults)
        self.max_norm = max_norm
        for b in self.buckets:
            for p in b.params:
                p.register_post_accumulate_grad_hook(lambda p, b=b: self.ready(b, p))

    def ready(self, bucket, p):
        bucket.missing.remove(p)
        if not bucket.missing:
            bucket.reduce()

    def backward(self, loss):
        loss.backward()

    @torch.no_grad()
    def step(self):
        mine = [p for b in self.buckets for p in b.mine]
        total = sum(p.grad.norm() ** 2 for p in mine)
        dist.all_reduce(total)
        norm = total**0.5
        for p in mine:
            p.grad *= min(1, self.max_norm / (norm + 1e-6))
        self.optim.step()
        self.optim.zero_grad()
        for b in self.buckets:
            longest = max(b.lengths)
            flat = torch.zeros(longest)
            flat[: b.lengths[dist.get_rank()]] = torch.cat([p.detach() for p in b.mine] + [torch.zeros(0)])
            slices = [torch.empty(longest) for _ in b.lengths]
            dist.all_gather(slices, flat)
            for r, new in enumerate(slices):
                at = 0
                for piece in b.pieces(r):
                    piece.copy_(new[at : at + piece.numel()])
                    at += piece.numel()
        return norm
