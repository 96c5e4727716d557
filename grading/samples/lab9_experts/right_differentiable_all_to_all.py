# %% experts
import torch.distributed.nn.functional as differentiable


def travel(rows, send, get, wire):
    """Rows go as `wire`; torch's own differentiable all_to_all brings their gradients back as `wire`, too."""
    out = torch.empty(sum(get), rows.shape[1], dtype=wire, device=rows.device)
    return differentiable.all_to_all_single(out, rows.to(wire).contiguous(), get, send).to(rows.dtype)


def numbers(values, send, get):
    out = torch.empty(sum(get), values.shape[1], dtype=values.dtype, device=values.device)
    dist.all_to_all_single(out, values.contiguous(), get, send)
    return out


class ExpertParallel:
    """Functions and no module: gates (T, E) are dense, and a rank's columns travel with the token."""

    def __init__(self, w_router, w_up, w_down, k, where, dtype):
        self.w_router, self.w_up, self.w_down, self.k, self.dtype = w_router, w_up, w_down, k, dtype
        n = dist.get_world_size()
        self.columns = [[e for e, home in enumerate(where) if home == r] for r in range(n)]
        self.widest = max(map(len, self.columns))

    def __call__(self, x):
        n, me = dist.get_world_size(), dist.get_rank()
        p = torch.softmax(x @ self.w_router.t(), dim=-1)
        chosen = torch.zeros_like(p).scatter(1, p.topk(self.k).indices, 1.0)
        gates = p * chosen
        tokens = [chosen[:, columns].any(1).nonzero().flatten() for columns in self.columns]
        send = [len(t) for t in tokens]
        everything = [torch.zeros(n, dtype=torch.long, device=x.device) for _ in range(n)]
        dist.all_gather(everything, torch.tensor(send, device=x.device))
        get = [int(row[me]) for row in everything]
        wide = [F.pad(gates[t][:, c], (0, self.widest - len(c))) for t, c in zip(tokens, self.columns, strict=True)]
        mine = torch.cat(wide)
        present, slot = torch.sort((mine != 0).to(torch.uint8), dim=1, descending=True, stable=True)
        keep = min(self.k, self.widest)
        slots = numbers(slot[:, :keep].to(torch.uint8), send, get).long()
        values = travel(mine.gather(1, slot[:, :keep]), send, get, x.dtype)
        here = torch.zeros(len(values), self.widest, dtype=x.dtype, device=x.device).scatter(1, slots, values)
        rows = travel(x[torch.cat(tokens)], send, get, self.dtype)
        # all of this rank's experts for all rows that came: simple, and the gates take out what was not chosen
        hidden = F.silu(torch.einsum("td,edh->teh", rows, self.w_up / n + (self.w_up - self.w_up / n).detach()))
        w_down = self.w_down / n + (self.w_down - self.w_down / n).detach()
        result = torch.einsum("teh,ehd,te->td", hidden, w_down, here[:, : len(self.columns[me])])
        back = travel(result, get, send, self.dtype)
        out = torch.zeros_like(x)
        for t, part in zip(tokens, back.split(send), strict=True):
            out = out.index_add(0, t, part)
        return out
