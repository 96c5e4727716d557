# %% experts
def swap(t, send, get):
    """One exchange by messages to every other rank, for whatever dtype."""
    me, parts = dist.get_rank(), [part.contiguous() for part in t.split(send)]
    got = [t.new_empty(n, *t.shape[1:]) for n in get]
    got[me] = parts[me]
    sends = [dist.P2POp(dist.isend, part, r) for r, part in enumerate(parts) if r != me and len(part)]
    gets = [dist.P2POp(dist.irecv, part, r) for r, part in enumerate(got) if r != me and len(part)]
    for work in dist.batch_isend_irecv(sends + gets) if sends or gets else []:
        work.wait()
    return torch.cat(got)


class Layer(torch.autograd.Function):
    """Forward and backward of the experts by hand, in one function: what travels is seen at one glance."""

    @staticmethod
    def forward(ctx, x, weight, up, down, token, slot, slots, send, get, wire):
        rows = swap(x[token].to(wire), send, get).to(x.dtype)
        gates = swap(torch.where(slots >= 0, weight[token], 0), send, get)
        ids = swap(slots, send, get)
        results = []
        for e in range(len(up)):
            row, k = (ids == e).nonzero().unbind(1)
            a = rows[row] @ up[e]
            results.append((row, k, a, F.silu(a) @ down[e]))
        total = torch.zeros_like(rows)
        for row, k, _, y in results:
            total.index_add_(0, row, y * gates[row, k, None])
        ctx.results, ctx.sizes, ctx.wire = results, (send, get), wire
        ctx.save_for_backward(rows, gates, up, down, token, slots)
        ctx.shape, ctx.k = x.shape, weight.shape
        back = swap(total.to(wire), get, send).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, token, back)

    @staticmethod
    def backward(ctx, g):
        rows, gates, up, down, token, slots = ctx.saved_tensors
        (send, get), wire, n = ctx.sizes, ctx.wire, dist.get_world_size()
        g_total = swap(g[token].to(wire), send, get).to(g.dtype)
        g_rows, g_gates = torch.zeros_like(rows), torch.zeros_like(gates)
        g_up, g_down = torch.zeros_like(up), torch.zeros_like(down)
        for e, (row, k, a, y) in enumerate(ctx.results):
            g_y = g_total[row] * gates[row, k, None]
            g_gates[row, k] = (g_total[row] * y).sum(1)
            s = torch.sigmoid(a)
            g_a = g_y @ down[e].T * (s + a * s * (1 - s))
            g_down[e], g_up[e] = F.silu(a).T @ g_y / n, rows[row].T @ g_a / n
            g_rows.index_add_(0, row, g_a @ up[e].T)
        g_x = torch.zeros(ctx.shape, dtype=g.dtype, device=g.device)
        g_x.index_add_(0, token, swap(g_rows.to(wire), get, send).to(g.dtype))
        g_weight = torch.zeros(ctx.k, dtype=g.dtype, device=g.device)
        g_weight.index_add_(0, token, torch.where(slots >= 0, swap(g_gates, get, send), 0))
        return g_x, g_weight, g_up, g_down, *[None] * 6


class ExpertParallel(nn.Module):
    def __init__(self, router, up, down, top_k, homes, wire):
        super().__init__()
        print("experts here:", len(up))
        self.router, self.up, self.down, self.k, self.wire = router, up, down, top_k, wire
        n = dist.get_world_size()
        self.home = torch.tensor(homes, device=router.device)
        self.number = torch.tensor([homes[:e].count(r) for e, r in enumerate(homes)], device=router.device)
        self.n = n

    def forward(self, x):
        weight, chosen = torch.topk(F.softmax(F.linear(x, self.router), dim=-1), self.k)
        token, slots, send = [], [], []
        for rank in range(self.n):
            there = self.home[chosen] == rank
            mine = there.any(1).nonzero().flatten()
            token.append(mine)
            slots.append(torch.where(there[mine], self.number[chosen[mine]], -1).to(torch.int32))
            send.append(len(mine))
        get = swap(torch.tensor(send, device=x.device), [1] * self.n, [1] * self.n).tolist()
        arguments = torch.cat(token), None, torch.cat(slots), send, get, self.wire
        return Layer.apply(x, weight, self.up, self.down, *arguments)


# %% place
def place(chosen, n_experts, n_ranks):
    """Anneal: random swaps, of which bad ones are taken seldom, and more and more seldom."""
    draw = random.Random(1)
    sets = [tuple(experts) for experts in chosen]
    of_expert = [[i for i, experts in enumerate(sets) if e in experts] for e in range(n_experts)]
    most = int(1.10 * sum(map(len, sets)) / n_ranks)

    def anneal():
        homes = [e % n_ranks for e in range(n_experts)]
        draw.shuffle(homes)
        count = [[0] * n_ranks for _ in sets]
        for i, experts in enumerate(sets):
            for e in experts:
                count[i][homes[e]] += 1
        busy = [sum(len(of_expert[e]) for e in range(n_experts) if homes[e] == r) for r in range(n_ranks)]

        def move(e, r):
            old, gain = homes[e], 0
            for i in of_expert[e]:
                row = count[i]
                row[old] -= 1
                gain += (row[r] == 0) - (row[old] == 0)
                row[r] += 1
            busy[old] -= len(of_expert[e])
            busy[r] += len(of_expert[e])
            homes[e] = r
            return gain

        def over():
            return 3 * sum(max(0, b - most) for b in busy)

        steps, best = 3000, None
        visits = sum(sum(c > 0 for c in row) for row in count)
        for step in range(steps):
            heat = 12 * (1 - step / steps) ** 2 + 1e-9
            a, b = draw.sample(range(n_experts), 2)
            if homes[a] == homes[b]:
                continue
            before, ra, rb = over(), homes[a], homes[b]
            gain = move(a, rb) + move(b, ra)
            worse = gain + over() - before
            if worse > 0 and draw.random() >= 2.718 ** (-worse / heat):
                move(a, ra)
                move(b, rb)
            else:
                visits += gain
            if not over() and (best is None or visits < best[0]):
                best = visits, homes.copy()
        return best or (10**9, homes)

    return min(anneal() for _ in range(10))[1]
