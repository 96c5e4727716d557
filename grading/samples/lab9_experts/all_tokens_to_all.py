# %% experts
class Gather(torch.autograd.Function):
    """Every rank gets the padded tokens of all; backward sums their gradients, and keeps the own ones."""

    @staticmethod
    def forward(ctx, x, wire):
        ctx.wire = wire
        parts = [torch.empty_like(x, dtype=wire) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.to(wire))
        return torch.cat(parts).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()], None


class Sum(torch.autograd.Function):
    """The sum over ranks of what each computed for the own tokens; backward gathers their gradients."""

    @staticmethod
    def forward(ctx, y, wire):
        ctx.wire, y = wire, y.clone()
        dist.all_reduce(y)
        return y.chunk(dist.get_world_size())[dist.get_rank()]

    @staticmethod
    def backward(ctx, gradient):
        return Gather.apply(gradient.contiguous(), ctx.wire), None


class ExpertParallel(nn.Module):
    def __init__(self, router, up, down, top_k, homes, wire):
        super().__init__()
        self.router, self.up, self.down, self.top_k, self.wire = router, up, down, top_k, wire
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.mine = [e for e, home in enumerate(homes) if home == self.rank]
        for p in (up, down):
            p.register_hook(lambda gradient: gradient / self.n)

    def forward(self, x):
        longest = torch.tensor(len(x), device=x.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        p = (x @ self.router.T).softmax(-1)
        gates = torch.zeros_like(p).scatter(1, p.topk(self.top_k).indices, 1.0) * p
        padding = 0, 0, 0, int(longest) - len(x)
        everything = Gather.apply(F.pad(x, padding), self.wire)
        gates = Gather.apply(F.pad(gates, padding), x.dtype)
        y = 0 * everything
        for e, up, down in zip(self.mine, self.up, self.down, strict=True):
            y = y + gates[:, e, None] * (F.silu(everything @ up) @ down)
        return Sum.apply(y, self.wire)[: len(x)]
