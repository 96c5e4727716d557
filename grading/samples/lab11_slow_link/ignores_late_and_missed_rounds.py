# %% sites
class Sites:
    """Do rounds alone: `late` and `up` are ignored."""

    def __init__(self, model, optimizer, network, H, lr, momentum, late, up):
        self.params, self.optimizer, self.H = list(model.parameters()), optimizer, H
        self.lr, self.momentum, self.k = lr, momentum, network.ranks_per_node
        self.first = network.node(dist.get_rank()) * self.k
        leaders = [site * self.k for site in range(network.nodes)]
        self.inside = [dist.new_group([r + j for j in range(self.k)]) for r in leaders][self.first // self.k]
        self.leaders = dist.new_group(leaders)
        self.anchor = [p.detach().clone() for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = self.n = 0

    def step(self, loss, n):
        (n * loss).backward()
        total = torch.tensor([float(n)], dtype=torch.float64)
        dist.all_reduce(total, group=self.inside)
        for p in self.params:
            dist.all_reduce(p.grad, group=self.inside)
            p.grad /= total.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.t, self.n = self.t + 1, self.n + total
        if self.t % self.H == 0:
            self.agree()

    def finish(self):
        if self.t % self.H:
            self.agree()

    @torch.no_grad()
    def agree(self):
        everybodys = self.n.clone()
        drifts = [self.n.item() * (a - p) for a, p in zip(self.anchor, self.params, strict=True)]
        for t in [everybodys, *drifts]:
            if dist.get_rank() == self.first:
                dist.all_reduce(t, group=self.leaders)
            dist.broadcast(t, self.first, group=self.inside)
        for p, a, v, d in zip(self.params, self.anchor, self.v, drifts, strict=True):
            v.mul_(self.momentum).add_(d / everybodys.item())
            a.sub_(self.lr * (d / everybodys.item() + self.momentum * v))
            p.copy_(a)
        self.n = 0
