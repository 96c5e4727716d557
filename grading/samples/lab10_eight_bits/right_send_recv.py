# %% eight_bits
GRID = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # all that are not negative, in order


class EightBits:
    """Loops over matrices; messages go by send and recv, and every message of reduce begins with its scales."""

    def __init__(self, shapes, formats, cuts):
        self.shapes, self.formats, self.cuts = shapes, formats, cuts
        self.me, self.n = dist.get_rank(), dist.get_world_size()
        self.mine = (cuts[self.me], cuts[self.me + 1])
        self.draws = torch.Generator().manual_seed(17 + self.me)

    def pieces(self, first, last):
        """Groups that have numbers from `first` to `last`: (their number, begin, end), counted from `first`."""
        group, begin = 0, 0
        for (rows, columns), word in zip(self.shapes, self.formats, strict=True):
            for size in [columns] * rows if word == "row" else [rows * columns]:
                low, high = max(begin, first), min(begin + size, last)
                if low < high:
                    yield group, low - first, high - first
                group, begin = group + 1, begin + size

    def count(self):
        return sum(rows if word == "row" else 1 for (rows, _), word in zip(self.shapes, self.formats, strict=True))

    @torch.no_grad()
    def gather(self, master):
        top = torch.zeros(self.count())
        for group, low, high in self.pieces(*self.mine):
            top[group] = master[low:high].abs().max()
        tops = self.exchange([top] * self.n, [torch.zeros_like(top) for _ in range(self.n)])
        scale = torch.stack(tops).amax(0) / 448
        codes = torch.zeros(len(master), dtype=torch.uint8)
        for group, low, high in self.pieces(*self.mine):
            if scale[group] > 0:
                codes[low:high] = self.cast(master[low:high] / scale[group])
        room = [torch.zeros(b - a, dtype=torch.uint8) for a, b in pairwise(self.cuts)]
        flat = torch.cat(self.exchange([codes] * self.n, room)).view(torch.float8_e4m3fn).float()
        for group, low, high in self.pieces(0, len(flat)):
            flat[low:high] *= scale[group]
        return list(p.reshape(s) for p, s in zip(flat.split([a * b for a, b in self.shapes]), self.shapes, strict=True))

    @torch.no_grad()
    def reduce(self, grads):
        flat = torch.cat([g.reshape(-1) for g in grads])
        scale = torch.zeros(self.count())
        codes = torch.zeros(len(flat), dtype=torch.uint8)
        for group, low, high in self.pieces(0, len(flat)):
            part = flat[low:high]
            scale[group] = part.abs().max() / 448
            if scale[group] != 0:
                codes[low:high] = self.cast(self.either(part / scale[group]))
        header = scale.view(torch.uint8)
        messages = [torch.cat([header, codes[a:b]]) for a, b in pairwise(self.cuts)]
        room = [torch.zeros_like(messages[self.me]) for _ in range(self.n)]
        total = torch.zeros(self.mine[1] - self.mine[0])
        for message in self.exchange(messages, room):
            theirs = message[: len(header)].clone().view(torch.float32)
            numbers = message[len(header) :].clone().view(torch.float8_e4m3fn).float()
            for group, low, high in self.pieces(*self.mine):
                total[low:high] += numbers[low:high] * theirs[group]
        return total / self.n

    def either(self, x):
        size = x.abs().contiguous()
        low = GRID[(torch.searchsorted(GRID, size, right=True) - 1).clamp(0, 126)]
        high = GRID[torch.searchsorted(GRID, size).clamp(0, 126)]
        chance = torch.where(high > low, (size - low) / (high - low), 0)
        drawn = torch.where(torch.rand(size.shape, generator=self.draws) < chance, high, low)
        return torch.where(torch.isfinite(x), drawn * x.sign(), torch.nan)

    def cast(self, x):
        return x.to(torch.float8_e4m3fn).view(torch.uint8)

    def exchange(self, messages, room):
        room[self.me].copy_(messages[self.me])
        others = [r for r in range(self.n) if r != self.me]
        ops = [dist.P2POp(dist.isend, messages[r], r) for r in others]
        ops += [dist.P2POp(dist.irecv, room[r], r) for r in others]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return room
