"""Models as a user may have them, of no family that the planner knows; and what can't be planned of a user's file."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Stage(nn.Module):
    """A strided convolution, a norm, attention over the pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.conv(x)))
        pixels = x.flatten(2).transpose(1, 2)
        attended, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        return x + attended.transpose(1, 2).reshape(x.shape)


class ConvNet(nn.Module):
    """Returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.stages = nn.ModuleList(Stage(16 << i) for i in range(3))
        self.head = nn.Linear(128, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Experts(nn.Module):
    """Two of four experts for each token, as many tokens for each expert: shapes do not depend on numbers."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / width)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        capacity = 2 * len(tokens) // len(self.up)
        weight, chosen = scores.t().topk(capacity)  # each expert chooses its tokens
        inside = tokens[chosen.flatten()].view(*chosen.shape, -1)
        outside = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down) * weight.unsqueeze(-1)
        return x + torch.zeros_like(tokens).index_add(0, chosen.flatten(), outside.flatten(0, 1)).view_as(x)


class ExpertsNet(nn.Module):
    """Returns logits; tied to its embedding."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(Experts() for _ in range(depth))
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def conv() -> nn.Module:
    return ConvNet()


def experts() -> tuple:
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), torch.zeros(logits[..., 0].numel(), dtype=torch.int64))

    return ExpertsNet(), loss


class Selects(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[y > 0].mean()


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.mean() if y.sum() > 0 else y.std()


def selects() -> nn.Module:
    return Selects(64, 64)


def branches() -> nn.Module:
    return Branches(64, 64)


def wrong_shape() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(32, 1))


def needs(vocab_size: int, width: int = 64) -> nn.Module:
    return nn.Embedding(vocab_size, width)


def returns_a_number() -> int:
    return 3


A_NUMBER = 3
