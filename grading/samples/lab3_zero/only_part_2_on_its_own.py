# %% zero2
class Zero2:
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        self.max_norm, self.queue, rank = max_norm, [], dist.get_rank()
        self.buckets = []
        for params in assign_buckets(list(module.parameters()), *[int(bucket_cap_mb * 2**20)] * 2):
            n = sum(p.numel() for p in params)
            cuts = [n * sum(shares[:r]) // sum(shares) for r in range(len(shares) + 1)]
            bucket = dict(
                params=params, waiting=len(params), lengths=[b - a for a, b in zip(cuts, cuts[1:], strict=False)]
            )
            at, mine = 0, []
            for p in params:
                a, b = max(cuts[rank] - at, 0), min(cuts[rank + 1] - at, p.numel())
                if a < b:
                    mine.append(nn.Parameter(p.detach().reshape(-1)[a:b]))
                at += p.numel()
            bucket["mine"] = mine
            self.buckets.append(bucket)
            for p in params:
                p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.count_down(bucket))
        self.optimizer = optimizer_class([p for bucket in self.buckets for p in bucket["mine"]], **defaults)

    def backward(self, loss):
        loss.backward()
        self.finish(0)

    @torch.no_grad()
    def count_down(self, bucket):
        bucket["waiting"] -= 1
        if bucket["waiting"]:
            return
        self.finish(0)
        bucket["waiting"] = len(bucket["params"])
        flat = torch.cat([p.grad.flatten() for p in bucket["params"]])
        for p in bucket["params"]:
            p.grad = None
        lengths, n = bucket["lengths"], dist.get_world_size()
        own = lengths[dist.get_rank()]
        parts = flat.new_empty(n * own)
        work = dist.all_to_all_single(parts, flat, [own] * n, lengths, async_op=True)
        self.queue.append((work, parts, bucket))

    @torch.no_grad()
    def finish(self, leave):
        while len(self.queue) > leave:
            work, parts, bucket = self.queue.pop(0)
            work.wait()
            if bucket["mine"]:
                mean = parts.view(dist.get_world_size(), -1).mean(0)
                for p, g in zip(bucket["mine"], mean.split([p.numel() for p in bucket["mine"]]), strict=True):
                    p.grad = g if p.grad is None else p.grad.add_(g)

    @torch.no_grad()
    def step(self):
        grads = [p.grad for bucket in self.buckets for p in bucket["mine"]]
        norm = nn.utils.get_total_norm(grads) ** 2
        dist.all_reduce(norm)
        norm = norm.sqrt()
        if torch.isfinite(norm):
            for g in grads:
                g *= torch.clamp(self.max_norm / (norm + 1e-6), max=1)
            self.optimizer.step()
            self.optimizer.zero_grad()
            for bucket in self.buckets:
                lengths, n = bucket["lengths"], dist.get_world_size()
                own = lengths[dist.get_rank()]
                mine = torch.cat([p.detach() for p in bucket["mine"]] or [bucket["params"][0].new_empty(0)])
                whole = mine.new_empty(sum(lengths))
                dist.all_to_all_single(whole, mine.repeat(n), lengths, [own] * n)
                for p, new in zip(bucket["params"], whole.split([p.numel() for p in bucket["params"]]), strict=True):
                    p.detach().copy_(new.view_as(p))
        else:
            self.optimizer.zero_grad()
        return norm
