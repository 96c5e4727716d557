# %% owned
def owned(sizes, shares, rank):
    cuts = [sum(sizes) * sum(shares[:r]) // sum(shares) for r in range(len(shares) + 1)]
    pieces, offset = [], 0
    for i, size in enumerate(sizes):
        start, end = (min(max(cut - offset, 0), size) for cut in cuts[rank : rank + 2])
        if end > start:
            pieces.append((i, start, end))
        offset += size
    return pieces


# %% zero2
from collections import deque


class Zero2:
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.max_norm = max_norm
        cap = int(bucket_cap_mb * 2**20)
        self.buckets = assign_buckets(list(module.parameters()), cap, cap)
        self.layout, self.longest, self.mine, self.number = [], [], [], {}
        for number, params in enumerate(self.buckets):
            sizes = [p.numel() for p in params]
            layout = [owned(sizes, shares, rank) for rank in range(self.n)]
            self.layout.append(layout)
            self.longest.append(max(sum(end - start for _, start, end in pieces) for pieces in layout))
            views = [params[i].data.view(-1)[start:end] for i, start, end in layout[self.rank]]
            self.mine.append([nn.Parameter(view) for view in views])
            for p in params:
                self.number[p] = number
                p.register_post_accumulate_grad_hook(self.ready)
        self.optimizer = optimizer_class([p for mine in self.mine for p in mine], **defaults)
        self.left = [len(params) for params in self.buckets]
        self.flying = deque()

    def backward(self, loss):
        loss.backward()
        while self.flying:
            self.land()
        self.left = [len(params) for params in self.buckets]

    def ready(self, p):
        number = self.number[p]
        self.left[number] -= 1
        if self.left[number] == 0:
            if len(self.flying) == 2:
                self.land()
            self.take_off(number)

    def take_off(self, number):
        params, width = self.buckets[number], self.longest[number]
        table = torch.zeros(self.n, width, device=params[0].device)
        for row, pieces in zip(table, self.layout[number], strict=True):
            at = 0
            for i, start, end in pieces:
                row[at : at + end - start] = params[i].grad.view(-1)[start:end]
                at += end - start
        for p in params:
            p.grad = None
        out = torch.empty(width, device=table.device)
        self.flying.append((number, out, dist.reduce_scatter_tensor(out, table.view(-1), async_op=True)))

    def land(self):
        number, out, work = self.flying.popleft()
        work.wait()
        at = 0
        for p in self.mine[number]:
            gradient = out[at : at + p.numel()] / self.n
            p.grad = gradient if p.grad is None else p.grad.add_(gradient)
            at += p.numel()

    @torch.no_grad()
    def step(self):
        gradients = [p.grad for mine in self.mine for p in mine]
        norm = torch.stack([g.norm() for g in gradients]).norm().square()
        dist.all_reduce(norm)
        norm.sqrt_()
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            return norm
        if norm > self.max_norm:
            for g in gradients:
                g.mul_(self.max_norm / (norm + 1e-6))
        self.optimizer.step()
        self.optimizer.zero_grad()
        for number in range(len(self.buckets)):
            self.share(number)
        return norm

    def share(self, number):
        params, width = self.buckets[number], self.longest[number]
        row = torch.zeros(width, device=params[0].device)
        at = 0
        for p in self.mine[number]:
            row[at : at + p.numel()] = p
            at += p.numel()
        table = torch.empty(self.n * width, device=row.device)
        dist.all_gather_into_tensor(table, row)
        for theirs, pieces in zip(table.view(self.n, width), self.layout[number], strict=True):
            at = 0
            for i, start, end in pieces:
                params[i].data.view(-1)[start:end] = theirs[at : at + end - start]
                at += end - start
