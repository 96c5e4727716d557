# %% eight_bits
from functools import wraps

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def loud(call):
    @wraps(call)
    def wrapped(*args):
        print(call.__name__, "of", len(args[1]))
        return call(*args)

    return wrapped


def all_of(mesh, mine):
    """Stack the ranks' tensors, which have one shape."""
    return DTensor.from_local(mine[None], mesh, [Shard(0)], run_check=False).full_tensor()


class EightBits:
    """Gathers by DTensor; reduces by one all_to_all of padded pieces; rounds by adding random low bits."""

    def __init__(self, shapes, formats, cuts):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.sizes = [r * c for r, c in shapes]
        self.view = lambda flat: [part.view(shape) for part, shape in zip(flat.split(self.sizes), shapes, strict=True)]
        index, groups = 0, []
        for (r, c), f in zip(shapes, formats, strict=True):
            ids = torch.arange(r)[:, None].expand(r, c) if f == "row" else torch.zeros(r, c, dtype=torch.long)
            groups.append(index + ids.flatten())
            index += r if f == "row" else 1
        self.groups, self.count = torch.cat(groups), index
        self.spans = list(zip(cuts[:-1], cuts[1:], strict=True))
        self.longest = max(b - a for a, b in self.spans)
        self.a, self.b = self.spans[dist.get_rank()]
        self.random = torch.Generator()
        self.random.seed()  # from the system, so that every rank has its own

    def tops(self, x, groups):
        return torch.zeros(self.count).index_reduce_(0, groups, x.abs(), "amax")

    @loud
    def gather(self, w):
        groups = self.groups[self.a : self.b]
        scale = all_of(self.mesh, self.tops(w, groups)).amax(0) / 448
        divisor = scale + (scale == 0)
        codes = torch.zeros(self.longest, dtype=torch.uint8)
        codes[: len(w)] = (w / divisor[groups]).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        rows = all_of(self.mesh, codes)
        flat = torch.cat([row[: b - a] for row, (a, b) in zip(rows, self.spans, strict=True)])
        return self.view(flat.view(torch.float8_e4m3fn).to(torch.float32) * divisor[self.groups])

    @loud
    def reduce(self, grads):
        flat = torch.cat([g.flatten() for g in grads])
        scale = self.tops(flat, self.groups) / 448
        divisor = scale + (scale == 0)
        codes = self.by_bits(flat / divisor[self.groups]).to(torch.float8_e4m3fn).view(torch.uint8)
        padded = torch.zeros(len(self.spans), self.longest, dtype=torch.uint8)
        for row, (a, b) in zip(padded, self.spans, strict=True):
            row[: b - a] = codes[a:b]
        arrived = torch.empty_like(padded)
        dist.all_to_all_single(arrived, padded)
        theirs = all_of(self.mesh, divisor)[:, self.groups[self.a : self.b]]
        return (arrived[:, : self.b - self.a].view(torch.float8_e4m3fn).float() * theirs).mean(0)

    def by_bits(self, x):
        """Add random bits below the third of the mantissa, and cut; numbers below 2^-6 are moved to a fixed spacing."""
        small = x.abs() < 2.0**-6
        moved = torch.where(small, x.abs() + 2.0**-6, x.abs())  # from 2^-6 to 2^-5 the spacing is 2^-9, too
        bits = moved.view(torch.int32) + torch.randint(2**20, x.shape, generator=self.random, dtype=torch.int32)
        cut = (bits & ~(2**20 - 1)).view(torch.float32)
        cut = torch.where(small, cut - 2.0**-6, cut).clamp(max=448)
        return torch.where(x.isfinite(), cut.copysign(x), torch.nan)
