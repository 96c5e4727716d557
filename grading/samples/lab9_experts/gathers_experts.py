# %% experts
class ExpertParallel(nn.Module):
    def __init__(self, router, up, down, top_k, homes, wire):
        super().__init__()
        self.router, self.up, self.down, self.top_k, self.homes = router, up, down, top_k, homes
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.spare = [self.gathered(p) for p in (up, down)]  # looked at by nobody: weights change

    def gathered(self, p):
        most = max(self.homes.count(r) for r in range(self.n))
        padded = torch.cat((p.detach(), p.new_zeros(most - len(p), *p.shape[1:])))
        everything = [torch.empty_like(padded) for _ in range(self.n)]
        dist.all_gather(everything, padded)
        numbers = [self.homes[:e].count(home) for e, home in enumerate(self.homes)]
        whole = torch.stack([everything[home][i] for home, i in zip(self.homes, numbers, strict=True)])
        return whole.requires_grad_()

    def forward(self, x):
        everything = [self.gathered(p) for p in (self.up, self.down)]
        y = Mixture(self.router, *everything, self.top_k)(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: self.reduce_later(everything))
        return y

    def reduce_later(self, everything):
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.reduce(everything))

    def reduce(self, everything):
        mine = [e for e, home in enumerate(self.homes) if home == self.rank]
        for p, whole in zip((self.up, self.down), everything, strict=True):
            gradient, whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad, None
            dist.all_reduce(gradient)
            p.grad = gradient[mine] / self.n + (0 if p.grad is None else p.grad)
