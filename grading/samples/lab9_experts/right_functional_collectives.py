# %% experts
import torch.distributed._functional_collectives as functional


class ExpertParallel(nn.Module):
    def __init__(self, router, up, down, top_k, homes, wire):
        super().__init__()
        self.router, self.up, self.down, self.top_k, self.wire = router, up, down, top_k, wire
        self.n = dist.get_world_size()
        self.mine = [e for e, home in enumerate(homes) if home == dist.get_rank()]
        self.homes = torch.tensor(homes, device=router.device)
        for p in (up, down):
            p.register_hook(lambda gradient: gradient / self.n)

    def forward(self, x):
        weight, chosen = torch.softmax(x @ self.router.T, -1).topk(self.top_k, -1)
        to, token = self.rows_to(chosen)
        send = to.bincount(minlength=self.n)
        get = functional.all_to_all_single(send, None, None, dist.group.WORLD)
        send, get = send.tolist(), get.tolist()

        def exchange(rows, away, back):
            moved = functional.all_to_all_single_autograd(rows.contiguous(), back, away, dist.group.WORLD)
            return moved * 1  # its gradient lies in one piece

        here = self.homes[chosen[token]] == to[:, None]
        experts = functional.all_to_all_single(
            torch.where(here, chosen[token], -1).to(torch.int32), get, send, dist.group.WORLD
        )
        weights = exchange(weight[token] * here, send, get)
        rows = exchange(x[token].to(self.wire), send, get).to(x.dtype)
        results = rows * 0
        for up, down, e in zip(self.up, self.down, self.mine, strict=True):
            row, slot = (experts == e).nonzero().unbind(1)
            results = results.index_add(0, row, F.silu(rows[row] @ up) @ down * weights[row, slot, None])
        out = exchange(results.to(self.wire), get, send).to(x.dtype)
        return torch.zeros_like(x).index_add(0, token, out)

    def rows_to(self, chosen):
        ranks = torch.arange(self.n, device=chosen.device)
        return (self.homes[chosen] == ranks[:, None, None]).any(-1).nonzero().unbind(1)
