"""The shapes of a decoder's parameters: all that a plan needs to know about a model."""

from dataclasses import dataclass
from math import prod

from shardlab.model import ModelConfig


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer. The defaults describe Llama; GPT-2, MPT or Qwen differ in the flags."""

    name: str
    vocab_size: int  # V
    dim: int  # D
    n_layers: int
    n_heads: int  # H
    n_kv_heads: int  # K
    head_dim: int  # E; H E need not be D
    hidden_dim: int  # F
    max_seq_len: int
    tied: bool = False  # one matrix for the embedding and the output
    gated: bool = True  # SwiGLU: two matrices up and one down; if False, one and one
    norm: str = "rms"  # or "layer"
    norm_bias: bool = True  # for "layer" only; MPT has none
    qkv_bias: bool = False
    linear_bias: bool = False  # of the other products
    qk_norm: bool = False  # a norm over each head of the queries and keys
    learned_positions: int = 0  # rows of a second embedding

    @classmethod
    def of(cls, name: str, c: ModelConfig) -> "Shape":
        same = (
            "vocab_size",
            "dim",
            "n_layers",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "hidden_dim",
            "max_seq_len",
            "tied",
        )
        return cls(name, **{field: getattr(c, field) for field in same})

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    def block(self) -> dict[str, tuple[int, ...]]:
        """Parameters of one block, in the order of `model.Block.named_parameters()`."""
        matrices = {
            "attention.query": (self.q_dim, self.dim, self.qkv_bias),
            "attention.key": (self.kv_dim, self.dim, self.qkv_bias),
            "attention.value": (self.kv_dim, self.dim, self.qkv_bias),
            "attention.out": (self.dim, self.q_dim, self.linear_bias),
        }
        forward = {
            **({"feed_forward.gate": (self.hidden_dim, self.dim, self.linear_bias)} if self.gated else {}),
            "feed_forward.up": (self.hidden_dim, self.dim, self.linear_bias),
            "feed_forward.down": (self.dim, self.hidden_dim, self.linear_bias),
        }
        heads = {"attention.query_norm": self.head_dim, "attention.key_norm": self.head_dim} if self.qk_norm else {}
        return {
            **self._norm("attention_norm"),
            **_linears(matrices),
            **{f"{name}.weight": (width,) for name, width in heads.items()},
            **self._norm("feed_forward_norm"),
            **_linears(forward),
        }

    def root(self) -> dict[str, tuple[int, ...]]:
        """Parameters outside the blocks."""
        return {
            "embedding.weight": (self.vocab_size, self.dim),
            **({"positions.weight": (self.learned_positions, self.dim)} if self.learned_positions else {}),
            **self._norm("norm"),
            **({} if self.tied else {"output.weight": (self.vocab_size, self.dim)}),
        }

    def _norm(self, name: str) -> dict[str, tuple[int, ...]]:
        bias = {f"{name}.bias": (self.dim,)} if self.norm == "layer" and self.norm_bias else {}
        return {f"{name}.weight": (self.dim,), **bias}

    @property
    def block_params(self) -> int:
        return sum(map(prod, self.block().values()))

    @property
    def n_params(self) -> int:
        return self.n_layers * self.block_params + sum(map(prod, self.root().values()))


def _linears(matrices: dict[str, tuple[int, int, bool]]) -> dict[str, tuple[int, ...]]:
    parts: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in matrices.items():
        parts[f"{name}.weight"] = (rows, columns)
        if bias:
            parts[f"{name}.bias"] = (rows,)
    return parts
