"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

It knows nothing of ranks or devices: every strategy in `shardlab` is applied to it from outside. Modules are in the
order in which forward uses them, so reversed(parameters) is the order in which their gradients are computed.

Shape suffixes: B batch, T positions, D model width, H query heads, K key/value heads, E head width, F hidden width,
V vocabulary.

Source: for the shapes, Llama 3 (Grattafiori et al. 2024, table 3) and, for 1B, Llama 3.2; Su et al. 2021 (rotary),
Shazeer 2020 (SwiGLU), Ainslie et al. 2023 (grouped queries), Zhang & Sennrich 2019 (RMSNorm).
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model. `tied` shares one matrix between the token embedding and the output projection."""

    vocab_size: int
    dim: int  # D
    n_layers: int
    n_heads: int  # H
    n_kv_heads: int  # K
    hidden_dim: int  # F
    max_seq_len: int
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    tied: bool = False

    def __post_init__(self) -> None:
        if self.dim % self.n_heads or self.head_dim % 2:
            raise ValueError(f"dim={self.dim} must be n_heads={self.n_heads} times an even head width")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads  # E

    @property
    def n_params(self) -> int:
        """Number of parameters, by formula; a tied matrix counts once."""
        kv_dim = self.n_kv_heads * self.head_dim
        attention = 2 * self.dim * self.dim + 2 * self.dim * kv_dim
        block = attention + 3 * self.dim * self.hidden_dim + 2 * self.dim
        embeddings = (1 if self.tied else 2) * self.vocab_size * self.dim
        return self.n_layers * block + self.dim + embeddings


# Below 1B, a byte vocabulary: the tokens are the bytes of a text. From 1B up, the published Llama 3 shapes.
PRESETS = {
    "1M": ModelConfig(256, 128, 4, 4, 2, 384, 512),
    "3M": ModelConfig(256, 256, 4, 8, 4, 640, 512),
    "10M": ModelConfig(256, 384, 6, 6, 2, 1024, 1024),
    "60M": ModelConfig(256, 768, 10, 12, 4, 2048, 1024),
    "125M": ModelConfig(256, 1024, 11, 16, 4, 2816, 2048),
    "1B": ModelConfig(128_256, 2048, 16, 32, 8, 8192, 131_072, tied=True),
    "8B": ModelConfig(128_256, 4096, 32, 32, 8, 14_336, 131_072),
    "70B": ModelConfig(128_256, 8192, 80, 64, 8, 28_672, 131_072),
    "405B": ModelConfig(128_256, 16_384, 126, 128, 8, 53_248, 131_072),
}


def preset(name: str, **changes) -> ModelConfig:
    """Return the named config, with some fields changed: `preset("1M", n_layers=2)`."""
    if name not in PRESETS:
        raise ValueError(f"no model preset {name!r}; there are {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)


def rotary_angles(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, each (T, E/2) float32."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x_BTHE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (first half, second half) of a head by its position's angle; computed in float32."""
    a, b = x_BTHE.float().chunk(2, dim=-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x_BTHE)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


def repeats_heads(device_type: str, dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Tell whether attention needs each key and value head once for every query head of its group.

    Of CUDA's fused kernels only FlashAttention takes fewer heads of keys than of queries. It needs 16 bits and sm_80.
    Elsewhere torch would fall back to MATH without a word, and MATH makes the (B, H, T, T) scores.
    Source: pytorch/pytorch#181528; aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    has_flash = capability >= (8, 0) and dtype in (torch.float16, torch.bfloat16)
    return device_type == "cuda" and not has_flash


def _capability(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0)


class Attention(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.query = nn.Linear(c.dim, c.n_heads * c.head_dim, bias=False)
        self.key = nn.Linear(c.dim, c.n_kv_heads * c.head_dim, bias=False)
        self.value = nn.Linear(c.dim, c.n_kv_heads * c.head_dim, bias=False)
        self.out = nn.Linear(c.n_heads * c.head_dim, c.dim, bias=False)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q_BTHE = rotate(self.query(x_BTD).view(heads), cos, sin)
        k_BTKE = rotate(self.key(x_BTD).view(heads), cos, sin)
        v_BTKE = self.value(x_BTD).view(heads)
        group = q_BTHE.shape[2] // k_BTKE.shape[2]  # query heads that share a key and value head
        if group > 1 and repeats_heads(x_BTD.device.type, k_BTKE.dtype, _capability(x_BTD)):
            k_BTKE, v_BTKE = (t.repeat_interleave(group, dim=2) for t in (k_BTKE, v_BTKE))  # K is now H
        q, k, v = (t.transpose(1, 2) for t in (q_BTHE, k_BTKE, v_BTKE))  # heads before positions
        y_BHTE = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])
        return self.out(y_BHTE.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(c.dim, c.hidden_dim, bias=False)
        self.up = nn.Linear(c.dim, c.hidden_dim, bias=False)
        self.down = nn.Linear(c.hidden_dim, c.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(c.dim, c.norm_eps)
        self.attention = Attention(c)
        self.feed_forward_norm = RMSNorm(c.dim, c.norm_eps)
        self.feed_forward = FeedForward(c)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos, sin)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class Transformer(nn.Module):
    """Tokens in, logits out; with targets, the mean cross-entropy instead.

    On the meta device it allocates nothing; `to_empty(device=...)` and `init_weights()` make it real later.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw from Normal(0, 0.02), divided by sqrt(2 n_layers) for projections into the residual stream; norms: 1."""
        residual = 0.02 / (2 * self.config.n_layers) ** 0.5
        for name, p in self.named_parameters():
            if p.ndim == 1:
                p.fill_(1.0)
            else:
                p.normal_(std=residual if name.endswith(("attention.out.weight", "feed_forward.down.weight")) else 0.02)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V), or with targets the loss, a float32 scalar. tokens, targets: (B, T) int64."""
        c, T = self.config, tokens_BT.shape[1]
        if c.max_seq_len < T:
            raise ValueError(f"{T} positions, but this model was configured for max_seq_len={c.max_seq_len}")
        cos, sin = rotary_angles(T, c.head_dim, c.rope_theta, tokens_BT.device)
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, cos, sin)
        logits_BTV = self.output(self.norm(x_BTD))
        if targets_BT is None:
            return logits_BTV
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
