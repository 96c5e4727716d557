"""The model of lab 5 and the costs of its blocks, as the notebook shows them (a test compares the two texts)."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode


class Forget(nn.Module):
    """How much of each earlier token a head still remembers: (H, T, T)."""

    def __init__(self, n_heads):
        super().__init__()
        self.log_rate = nn.Parameter(-2 * torch.arange(n_heads) * math.log(2))  # forgets 1, 1/4, 1/16 ... a token

    def forward(self, positions):  # (T,), float32: where each token stands in its document
        a = torch.exp(-torch.exp(self.log_rate))[:, None, None]  # what is left of a memory after one token
        age = positions[:, None] - positions[None, :]
        return ((1 - a) * a ** age.clamp(min=0)).tril()


class Memory(nn.Module):
    """Each head a sum over the past that forgets at its own rate."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.forget = Forget(n_heads)
        self.value = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, positions):
        v = self.value(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, E)
        y = self.forget(positions).type_as(v) @ v
        y = y.float() * torch.rsqrt(y.float().square().mean(-1, keepdim=True) + 1e-12)
        return self.out(y.type_as(x).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim, n_heads, hidden, dropout):
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.memory = Memory(dim, n_heads)
        self.feed_forward = FeedForward(dim, hidden)

    def forward(self, x, positions):
        x = x + self.drop(self.memory(self.norm1(x), positions))
        return x + self.drop(self.feed_forward(self.norm2(x)))

    def drop(self, x):
        return x * torch.empty_like(x).bernoulli_(1 - self.dropout) / (1 - self.dropout) if self.dropout else x


class Reader(nn.Module):
    """Tokens (B, T) and positions (T,) in, logits (B, T, V) out. `hidden` has one width for each block."""

    def __init__(self, vocab, dim, n_heads, hidden, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, n_heads, h, dropout) for h in hidden)
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens, positions):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions)
        return self.output(self.norm(x))


def price_list(model, tokens, positions, dtype=torch.float32):
    """Return for each block: way -> (bytes held from forward to backward, FLOPs computed again in backward)."""
    prices = []
    x = model.embedding(tokens).detach().to(dtype).requires_grad_()
    for block in copy.deepcopy(model.blocks):
        block.to(dtype).memory.forget.float()
        saved, products = {}, []

        def count(layer, args, result, products=products):
            products.append(result.nbytes)

        def pack(t, saved=saved):
            saved[t.untyped_storage().data_ptr()] = t
            return t

        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(count)

        with saved_tensors_hooks(pack, lambda t: t), FlopCounterMode(display=False) as flops:
            block(x, positions)
        for t in (*block.parameters(), positions):
            saved.pop(t.untyped_storage().data_ptr(), None)
        mix = flops.get_flop_counts()["Global"][torch.ops.aten.bmm]
        kept = sum(t.untyped_storage().nbytes() for t in saved.values())
        ways = {"keep": (kept, 0), "selective": (x.nbytes + sum(products), mix)}
        prices.append(ways | {"full": (x.nbytes, flops.get_total_flops())})
    return prices
