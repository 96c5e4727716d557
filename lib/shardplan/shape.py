"""The shapes of a decoder's parameters: all that a plan needs to know about a model."""

from dataclasses import dataclass, replace
from math import prod

from shardlab.model import ModelConfig


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of a feed-forward: each token goes to the `per_token` experts that a router
    chooses, and to the shared ones. Source: Shazeer et al. 2017; Dai et al. 2024, "DeepSeekMoE", for shared experts."""

    number: int  # X
    per_token: int  # Z
    hidden_dim: int  # W, of each expert
    shared_dim: int = 0  # U, of all shared experts together
    dense_layers: int = 0  # blocks that have a feed-forward of the shape's hidden_dim instead
    router_bias: bool = False  # a number an expert
    bias: bool = False  # of the experts' products


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values pass narrow products, and part of each head is turned.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C.
    """

    query_rank: int  # 0: queries are one product
    kv_rank: int
    plain_dim: int  # of a head's queries and keys, not turned
    turned_dim: int  # turned; all heads share the keys of this part
    value_dim: int


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
    out_bias: bool | None = None  # of attention.out; None: as linear_bias
    whole_qk_norm: bool = False  # qk_norm over all heads together, as OLMo 2
    sinks: bool = False  # a number a head, beside its scores
    post_norms: int = 0  # norms after attention and the feed-forward as well: 2 as Gemma 3; or in their place: 0
    window: int = 0  # positions that a query sees in a windowed layer; 0: all
    full_share: float = 0.0  # with a window: share of the blocks that see all positions
    experts: Experts | None = None
    latent: Latent | None = None

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

    @property
    def v_dim(self) -> int:
        """Width of attention's result, for all heads."""
        return self.n_heads * self.latent.value_dim if self.latent else self.q_dim

    @property
    def dense(self) -> "Shape":
        """This shape with a feed-forward in the place of the experts, as in the first blocks of some mixtures."""
        return replace(self, experts=None)

    def block(self) -> dict[str, tuple[int, ...]]:
        """Parameters of one block, in the order of `model.Block.named_parameters()`."""
        after = {f"{name}_post_norm.weight": (self.dim,) for name in ("attention", "feed_forward")}
        return {
            **self._norm("attention_norm"),
            **self._attention(),
            **self._norm("feed_forward_norm"),
            **(self._experts(self.experts) if self.experts else self._feed_forward("feed_forward", self.hidden_dim)),
            **(after if self.post_norms else {}),
        }

    def _attention(self) -> dict[str, tuple[int, ...]]:
        out_bias = self.linear_bias if self.out_bias is None else self.out_bias
        out = {"attention.out": (self.dim, self.v_dim, out_bias)}
        if self.latent:
            return self._latent(self.latent) | _linears(out)
        matrices = {
            "attention.query": (self.q_dim, self.dim, self.qkv_bias),
            "attention.key": (self.kv_dim, self.dim, self.qkv_bias),
            "attention.value": (self.kv_dim, self.dim, self.qkv_bias),
        }
        widths = (self.q_dim, self.kv_dim) if self.whole_qk_norm else (self.head_dim, self.head_dim)
        heads = dict(zip(("attention.query_norm", "attention.key_norm"), widths, strict=True)) if self.qk_norm else {}
        return {
            **_linears(matrices | out),
            **{f"{name}.weight": (width,) for name, width in heads.items()},
            **({"attention.sinks": (self.n_heads,)} if self.sinks else {}),
        }

    def _latent(self, a: Latent) -> dict[str, tuple[int, ...]]:
        q_dim, kv_dim = self.n_heads * (a.plain_dim + a.turned_dim), self.n_heads * (a.plain_dim + a.value_dim)
        narrow = {"attention.query_a": (a.query_rank, self.dim, self.qkv_bias)} if a.query_rank else {}
        name, rank = ("attention.query_b", a.query_rank) if narrow else ("attention.query", self.dim)
        matrices = {
            **narrow,
            name: (q_dim, rank, False),
            "attention.kv_a": (a.kv_rank + a.turned_dim, self.dim, self.qkv_bias),
            "attention.kv_b": (kv_dim, a.kv_rank, False),
        }
        norms = {"attention.query_a_norm.weight": (a.query_rank,)} if narrow else {}
        return _linears(matrices) | norms | {"attention.kv_a_norm.weight": (a.kv_rank,)}

    def _feed_forward(self, name: str, width: int) -> dict[str, tuple[int, ...]]:
        gate = {f"{name}.gate": (width, self.dim, self.linear_bias)} if self.gated else {}
        up, down = (width, self.dim, self.linear_bias), (self.dim, width, self.linear_bias)
        return _linears({**gate, f"{name}.up": up, f"{name}.down": down})

    def _experts(self, e: Experts) -> dict[str, tuple[int, ...]]:
        """Parameters of a mixture. The matrices of all experts lie below each other in one."""
        x, width = e.number, e.hidden_dim
        matrices = {"experts.gate": (x * width, self.dim), "experts.up": (x * width, self.dim)}
        matrices |= {"experts.down": (x * self.dim, width)}
        return {
            "router.weight": (x, self.dim),
            **({"router.bias": (x,)} if e.router_bias else {}),
            **{f"{name}.weight": shape for name, shape in matrices.items()},
            **({f"{name}.bias": shape[:1] for name, shape in matrices.items()} if e.bias else {}),
            **(self._feed_forward("shared", e.shared_dim) if e.shared_dim else {}),
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
    def dense_layers(self) -> int:
        """Blocks without experts, of a mixture."""
        return self.experts.dense_layers if self.experts else 0

    @property
    def block_params(self) -> int:
        return sum(map(prod, self.block().values()))

    @property
    def n_params(self) -> int:
        mixed, dense = self.n_layers - self.dense_layers, self.dense_layers
        of_blocks = mixed * self.block_params + dense * self.dense.block_params
        return of_blocks + sum(map(prod, self.root().values()))

    @property
    def active_params(self) -> int:
        """Parameters that one token uses: of a mixture, those of the experts that it goes to."""
        if not self.experts:
            return self.n_params
        of_experts = sum(prod(shape) for name, shape in self.block().items() if name.startswith("experts."))
        idle = of_experts // self.experts.number * (self.experts.number - self.experts.per_token)
        return self.n_params - (self.n_layers - self.dense_layers) * idle


def _linears(matrices: dict[str, tuple[int, int, bool]]) -> dict[str, tuple[int, ...]]:
    parts: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in matrices.items():
        parts[f"{name}.weight"] = (rows, columns)
        if bias:
            parts[f"{name}.bias"] = (rows,)
    return parts
