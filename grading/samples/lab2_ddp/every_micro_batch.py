# %% token_ddp
class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.module = module
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.detach(), src=0)
        params = [p for p in module.parameters() if p.requires_grad]
        cap_bytes = int(bucket_cap_mb * 2**20)
        self.buckets = [TokenBucket(ps) for ps in assign_buckets(params, cap_bytes, cap_bytes)]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        self.sync = True
        self.tokens = 0  # valid tokens of this rank since the last step
        for p in params:
            p.register_post_accumulate_grad_hook(self._gradient_ready)

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        yield

    def backward(self, loss_sum, n_tokens):
        self.tokens = self.tokens + n_tokens
        if not self.sync:
            loss_sum.backward()
            return
        total = self.tokens.clone()
        counting = dist.all_reduce(total, async_op=True)
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)
        loss_sum.backward()
        counting.wait()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.flat.div_(total)
        self.tokens = 0

    @torch.no_grad()
    def _gradient_ready(self, p):
        if not self.sync:
            return
        bucket = self.bucket_of[p]
        bucket.views[p].copy_(p.grad)
        p.grad = bucket.views[p]
        bucket.missing.discard(p)
        if not bucket.missing:
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)


class TokenBucket:
    """A flat buffer, and for each of its parameters the slice that is its gradient."""

    def __init__(self, params):
        self.flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        slices = self.flat.split([p.numel() for p in params])
        self.views = {p: s.view_as(p) for p, s in zip(params, slices, strict=True)}
        self.missing, self.work = set(), None
