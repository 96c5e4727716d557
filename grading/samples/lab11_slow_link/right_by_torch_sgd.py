# %% sites
class Sites:
    """Parameter by parameter; torch's own SGD moves the anchor, with the mean drift as its gradient."""

    def __init__(self, net, inner, where, every, rate, beta, delay, links_up):
        self.net, self.inner, self.every, self.delay, self.links_up = net, inner, every, delay, links_up
        self.anchor = [torch.nn.Parameter(p.detach().clone()) for p in net.parameters()]
        self.outer = torch.optim.SGD(self.anchor, lr=rate, momentum=beta, nesterov=beta > 0)
        self.m, self.k, self.me = where.nodes, where.ranks_per_node, dist.get_rank()
        self.site, self.first = where.node(self.me), where.node(self.me) * where.ranks_per_node
        self.local = None
        for site in range(self.m):
            group = dist.new_group([site * self.k + j for j in range(self.k)])
            self.local = group if site == self.site else self.local
        self.far = {}
        for bits in range(1, 2**self.m):
            sites = [site for site in range(self.m) if bits >> site & 1]
            if len(sites) > 1:
                self.far[str(sites)] = dist.new_group([site * self.k for site in sites])
        self.count = torch.zeros(1, dtype=torch.float64)
        self.steps, self.behind, self.flight = 0, [], None

    def step(self, loss, n):
        (loss * n).backward()
        here = torch.tensor([n], dtype=torch.float64)
        dist.all_reduce(here, group=self.local)
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.local)
            p.grad /= here.item()
        self.inner.step()
        self.inner.zero_grad(set_to_none=False)
        self.count += here
        self.steps += 1
        if self.steps % self.every == 0:
            print(f"round {self.steps // self.every} ends")
            self.begin(list(self.links_up(self.steps // self.every - 1)))
        if self.flight and self.steps % self.every == self.delay:
            self.end()

    def finish(self):
        if self.flight:
            self.end()
        if self.count.item() or self.behind:
            self.begin(list(range(self.m)))
            self.end()

    @torch.no_grad()
    def begin(self, sites):
        returning = [site for site in sites if site in self.behind]
        giver = [site for site in sites if site not in self.behind][0]
        self.behind = [site for site in range(self.m) if site not in sites]
        if self.site not in sites:
            return
        sent = [p.detach().clone() for p in self.net.parameters()]
        drifts = [(a - p) * self.count.item() for a, p in zip(self.anchor, sent, strict=True)]
        for site in returning:
            if self.me in (giver * self.k, site * self.k):
                self.hand_over(giver * self.k, site * self.k)
        if self.site in returning:
            for t in self.outer_state():
                dist.broadcast(t, self.first, group=self.local)
        works = []
        if self.me == self.first and len(sites) > 1:
            works = [dist.all_reduce(t, group=self.far[str(sites)], async_op=True) for t in [*drifts, self.count]]
        self.flight = drifts, self.count, works, sent
        self.count = torch.zeros(1, dtype=torch.float64)

    def outer_state(self):
        for a in self.anchor:
            buffer = self.outer.state[a].get("momentum_buffer")
            self.outer.state[a]["momentum_buffer"] = torch.zeros_like(a) if buffer is None else buffer
        return [a.data for a in self.anchor] + [self.outer.state[a]["momentum_buffer"] for a in self.anchor]

    def hand_over(self, giver, taker):
        for t in self.outer_state():
            dist.send(t, taker) if self.me == giver else dist.recv(t, giver)

    @torch.no_grad()
    def end(self):
        drifts, count, works, sent = self.flight
        self.flight = None
        [work.wait() for work in works]
        for t in [*drifts, count]:
            dist.broadcast(t, self.first, group=self.local)
        for a, d in zip(self.anchor, drifts, strict=True):
            a.grad = d / count.item()
        self.outer.step()
        for p, a, before in zip(self.net.parameters(), self.anchor, sent, strict=True):
            p += a - before
