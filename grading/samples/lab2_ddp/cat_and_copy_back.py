# %% token_ddp
class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.module, self.last, self.tokens = module, True, 0
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
        cap = int(bucket_cap_mb * 2**20)
        self.buckets = assign_buckets([p for p in module.parameters() if p.requires_grad], cap, cap)
        self.missing = [set(ps) for ps in self.buckets]
        self.sent = []
        for i, ps in enumerate(self.buckets):
            for p in ps:
                p.register_post_accumulate_grad_hook(lambda p, i=i: self.made(p, i))

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.last = False
        yield
        self.last = True

    def made(self, p, i):
        if self.last:
            self.missing[i].remove(p)
            if not self.missing[i]:
                self.missing[i] = set(self.buckets[i])
                flat = torch.cat([q.grad.flatten() for q in self.buckets[i]])
                self.sent.append((self.buckets[i], flat, dist.all_reduce(flat, async_op=True)))

    def backward(self, loss_sum, n_tokens):
        self.tokens = self.tokens + n_tokens
        loss_sum.backward()
        if self.last:
            dist.all_reduce(self.tokens)
            for ps, flat, work in self.sent:
                work.wait()
                for p, part in zip(ps, flat.split([p.numel() for p in ps]), strict=True):
                    p.grad.copy_(part.view_as(p)).div_(self.tokens)
            self.sent, self.tokens = [], 0
