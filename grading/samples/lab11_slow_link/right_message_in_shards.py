# %% sites
class Outer:
    """Each rank of a site carries its part of the drift to its peers at the other sites; then the site gathers."""

    def __init__(self, model, network, size):
        self.k, self.sites = network.ranks_per_node, network.nodes
        self.site, self.place = divmod(dist.get_rank(), self.k)
        self.inside = [dist.new_group([s * self.k + j for j in range(self.k)]) for s in range(self.sites)][self.site]
        self.peers = {}
        for m in range(2, self.sites + 1):
            for some in combinations(range(self.sites), m):
                for j in range(self.k):
                    group = dist.new_group([s * self.k + j for s in some])
                    if j == self.place:
                        self.peers[some] = group
        self.part = -(-size // self.k)

    def start(self, message, sites):
        padded = torch.cat([message, message.new_zeros(self.k * self.part - message.numel())])
        mine = padded[self.place * self.part : (self.place + 1) * self.part].clone()
        return mine, len(sites) > 1 and dist.all_reduce(mine, group=self.peers[tuple(sites)], async_op=True)

    def collect(self, mine, work, size):
        if work:
            work.wait()
        parts = [torch.empty_like(mine) for _ in range(self.k)]
        dist.all_gather(parts, mine, group=self.inside)
        return torch.cat(parts)[:size]

    def fetch(self, state, newest, back):
        """The newest site's ranks each send the part of the state that they carry."""
        whole = torch.cat([state, state.new_zeros(-state.numel() % self.k)])
        mine = whole.chunk(self.k)[self.place].contiguous()
        if self.site == newest:
            for request in [dist.isend(mine, s * self.k + self.place) for s in back]:
                request.wait()
            return state
        dist.irecv(mine, newest * self.k + self.place).wait()
        parts = [torch.empty_like(mine) for _ in range(self.k)]
        dist.all_gather(parts, mine, group=self.inside)
        return torch.cat(parts)[: state.numel()]


def Sites(model, optimizer, network, H, lr, momentum, late, up):  # a function that makes one, not a class
    from types import SimpleNamespace

    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    params = list(model.parameters())

    def weights():
        return parameters_to_vector(params).detach().clone()

    anchor = weights()
    outer, size = Outer(model, network, anchor.numel() + 1), anchor.numel() + 1
    me = SimpleNamespace(a=anchor, v=0 * anchor, n=0, t=0, k=0, last=list(range(network.nodes)), flight=None)

    def send(sites):
        back, newest = set(sites) - set(me.last), min(set(sites) & set(me.last))
        me.last = list(sites)
        if outer.site not in sites:
            return
        w = weights()
        message = torch.cat([me.n * (me.a - w), torch.tensor([me.n], dtype=w.dtype)])
        if outer.site in back or (back and outer.site == newest):
            me.a, me.v = outer.fetch(torch.cat([me.a, me.v]), newest, sorted(back)).chunk(2)
        me.flight, me.n = (*outer.start(message, sites), w), 0

    def receive():
        mine, work, then = me.flight
        me.flight = None
        total = outer.collect(mine, work, size)
        d = total[:-1] / total[-1]
        me.v = momentum * me.v + d
        me.a = me.a - lr * (d + momentum * me.v)
        vector_to_parameters(me.a + weights() - then, params)

    def step(loss, n):
        loss.backward()
        g = torch.cat([parameters_to_vector([p.grad for p in params]), anchor.new_ones(1)]) * n
        dist.all_reduce(g, group=outer.inside)
        vector_to_parameters(g[:-1] / g[-1], [p.grad for p in params])
        optimizer.step()
        optimizer.zero_grad()
        me.n, me.t = me.n + int(g[-1]), me.t + 1
        if me.t % H == 0:
            send(up(me.k))
            me.k += 1
        if me.flight and me.t % H == late:
            receive()

    def finish():
        if me.flight:
            receive()
        if me.t % H or len(me.last) < network.nodes:
            send(list(range(network.nodes)))
            receive()

    return SimpleNamespace(step=step, finish=finish)
