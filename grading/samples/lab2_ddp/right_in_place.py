# %% token_ddp
class TokenDDP(nn.Module):
    """Gradients are made in their buckets from the first micro-batch on; autograd's callback waits for the messages."""

    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.module, self.syncs, self.tokens = module, True, None
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
        cap = int(bucket_cap_mb * 1024 * 1024)
        self.buckets = assign_buckets([p for p in module.parameters() if p.requires_grad], cap, cap)
        self.flats = [torch.cat([torch.zeros_like(p).view(-1) for p in ps]) for ps in self.buckets]
        self.left = [len(ps) for ps in self.buckets]
        self.works = []
        for i, ps in enumerate(self.buckets):
            for p, part in zip(ps, self.flats[i].split([p.numel() for p in ps]), strict=True):
                view = part.view_as(p)
                p.register_post_accumulate_grad_hook(lambda p, i=i, view=view: self.made(p, i, view))

    def forward(self, tokens):
        return self.module(tokens)

    @contextmanager
    def no_sync(self):
        self.syncs = False
        yield
        self.syncs = True

    def backward(self, loss_sum, n_tokens):
        self.tokens = n_tokens.clone() if self.tokens is None else self.tokens + n_tokens
        self.starts = self.syncs
        loss_sum.backward()

    def made(self, p, i, view):
        if p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad)
            p.grad = view
        if not self.syncs:
            return
        if self.starts:
            self.starts = False
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.left[i] -= 1
        if self.left[i] == 0:
            self.works.append(dist.all_reduce(self.flats[i], async_op=True))

    def finish(self):
        dist.all_reduce(self.tokens)
        while self.works:
            self.works.pop().wait()
        for flat in self.flats:
            flat /= self.tokens
        self.left, self.tokens = [len(ps) for ps in self.buckets], None


# %% plan_buckets
import numpy as np


def plan_buckets(sizes_bytes, ready_s, **link):
    """Tries every last bucket at once."""
    n, latency, speed = link["world_size"], link["latency_s"], link["bandwidth_bytes_per_s"]
    before = np.concatenate([[0], np.cumsum(sizes_bytes)])
    finish, first = np.zeros(len(sizes_bytes) + 1), []
    for j, ready in enumerate(ready_s, 1):
        cost = 2 * (n - 1) * (latency + (before[j] - before[:j]) / n / speed)
        ends = np.maximum(finish[:j], ready) + cost
        first.append(np.argmin(ends))
        finish[j] = ends.min()
    plan, j = [], len(first)
    while j:
        plan.insert(0, j - first[j - 1])
        j = first[j - 1]
    return plan
