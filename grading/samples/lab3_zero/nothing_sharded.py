# %% zero2
class Zero2:
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        self.params, self.max_norm = list(module.parameters()), max_norm
        cap_bytes = int(bucket_cap_mb * MiB)
        self.buckets = assign_buckets(self.params, cap_bytes, cap_bytes)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket}
        self.sums = {p: torch.zeros_like(p) for p in self.params}
        self.optimizer = optimizer_class(self.params, **defaults)
        self.work = None
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.ready)

    def backward(self, loss):
        self.seen = set()
        loss.backward()
        self.finish()

    def ready(self, p):
        self.seen.add(p)
        bucket = self.bucket_of[p]
        if self.seen.issuperset(bucket):
            self.finish()
            flat = torch.cat([q.grad.flatten() for q in bucket]) / dist.get_world_size()
            for q in bucket:
                q.grad = None
            self.work = dist.all_reduce(flat, async_op=True), flat, bucket

    @torch.no_grad()
    def finish(self):
        if self.work:
            work, flat, bucket = self.work
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                self.sums[p] += part.view_as(p)
            self.work = None

    def step(self):
        for p in self.params:
            p.grad = self.sums[p]
        norm = nn.utils.clip_grad_norm_(self.params, self.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        for p in self.params:
            p.grad = None
            self.sums[p].zero_()
        return norm
