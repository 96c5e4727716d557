"""Floating-point operations of a step: the model's own, and all that the hardware executes.

A matrix product of R vectors with a matrix of C x I elements is R C I multiply-adds, 2 FLOPs each. Backward has two for
each of forward's: the gradient of the input and, unless the weight is frozen, the gradient of the weight.

    forward    2 for each multiplied weight and token
    backward   4 for each; 2 for each that is frozen
    recompute  2 for each that is computed again

Attention has two products without a weight, scores and mix: 4 T H E for a token forward, 8 T H E backward. Causal
masking leaves half of this work, and flash attention does only that half.

[Note: MFU] Model FLOPs utilization does not count recomputation. Almost everybody also ignores the mask and counts
attention whole (PaLM's appendix B; torchtitan, llm-foundry and Megatron follow it). `causal=True` halves attention
instead, as nanotron and the course's own scaling law do; at 8192 tokens the difference is a tenth of Llama 3.1 8B's
FLOPs. An embedding is a table lookup, which costs nothing.

Source: Kaplan et al. 2020, table 1; Chowdhery et al. 2022, "PaLM", appendix B; Korthikanti et al. 2022, section 4.3.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardplan.planned_job import Setup

# Backward of flash attention recomputes the scores: five products, where forward has two.
FLASH_BACKWARD = 2.5


@dataclass(frozen=True)
class Product:
    """Matrix products on one GPU, one for each of `groups` experts: `rows` vectors of `inner` elements become `rows`
    vectors of `columns` elements."""

    name: str
    rows: float
    inner: float
    columns: float
    frozen: bool = False
    groups: int = 1

    @property
    def flops(self) -> float:
        """FLOPs of the product in forward."""
        return 2.0 * self.groups * self.rows * self.inner * self.columns

    def backward(self) -> tuple["Product", ...]:
        """Return backward's products: (rows x columns) by (columns x inner), and (columns x rows) by (rows x inner)."""
        of_input = replace(self, name=f"{self.name}, gradient of the input", inner=self.columns, columns=self.inner)
        name = f"{self.name}, gradient of the weight"
        of_weight = replace(self, name=name, rows=self.columns, inner=self.rows, columns=self.inner)
        return (of_input,) if self.frozen else (of_input, of_weight)


def block_products(setup: Setup, busiest: bool = False) -> tuple[Product, ...]:
    """Products of a block for one micro-batch, in forward's order. Tensor parallelism splits their columns or rows.

    `busiest`: of the rank whose experts have most tokens. Otherwise a mixture is balanced.
    """
    s, t = setup.shape, setup.strategy.tensor
    linears = _attention(setup)
    if not s.experts:
        linears += _feed_forward(setup, "feed_forward", s.hidden_dim / t)
    else:
        linears += [("router", s.dim, s.experts.number)]
        linears += _feed_forward(setup, "shared", s.experts.shared_dim / t) if s.experts.shared_dim else []
    products = [product for linear in linears for product in _with_lora(setup, *linear)]
    return (*products, *(_grouped_products(setup, busiest) if s.experts else ()))


def _attention(setup: Setup) -> list[tuple[str, float, float]]:
    s, t, a = setup.shape, setup.strategy.tensor, setup.shape.latent
    out = ("attention.out", s.v_dim / t, s.dim)
    if not a:
        key, value = (("attention.key", s.dim, s.kv_dim / t), ("attention.value", s.dim, s.kv_dim / t))
        return [("attention.query", s.dim, s.q_dim / t), key, value, out]
    narrow = [("attention.query_a", s.dim, a.query_rank)] if a.query_rank else []
    queries = ("attention.query_b", a.query_rank or s.dim, s.q_dim / t)
    kv_b = ("attention.kv_b", a.kv_rank, s.n_heads * (a.plain_dim + a.value_dim) / t)
    return [*narrow, queries, ("attention.kv_a", s.dim, a.kv_rank + a.turned_dim), kv_b, out]


def _feed_forward(setup: Setup, name: str, width: float) -> list[tuple[str, float, float]]:
    dim = setup.shape.dim
    gate = [(f"{name}.gate", dim, width)] if setup.shape.gated else []
    return [*gate, (f"{name}.up", dim, width), (f"{name}.down", width, dim)]


def _grouped_products(setup: Setup, busiest: bool) -> tuple[Product, ...]:
    """Products of the experts on this rank, each with as many rows as the others have."""
    e, s = setup.shape.experts, setup.strategy
    groups = e.number // s.expert
    rows = setup.routed / (1 if busiest else s.imbalance) / groups
    linears = _feed_forward(setup, "experts", e.hidden_dim / s.tensor)
    return tuple(Product(name, rows, inner, columns, _is_lora(setup), groups) for name, inner, columns in linears)


def head_products(setup: Setup) -> tuple[Product, ...]:
    """Products of the output layer."""
    s = setup.shape
    linear = ("output", s.dim, s.vocab_size / setup.strategy.tensor)
    if s.tied:  # the matrix is also the embedding, which LoRA does not change
        return (Product("output", setup.tokens, *linear[1:], frozen=_is_lora(setup)),)
    return tuple(_with_lora(setup, *linear))


def recomputed_head(setup: Setup) -> tuple[Product, ...]:
    """Product of the output layer that backward computes again."""
    return head_products(setup)[:1] if setup.strategy.cross_entropy == "vocabulary" else ()


def attention_flops(setup: Setup, causal: bool = False) -> float:
    """FLOPs of a block's scores and mix in forward, for this GPU's queries and heads, each with all T positions.

    The mean over blocks, if some see a window only: causal, its queries see w - w^2 / 2T positions on average.
    """
    shape, seq_len = setup.shape, setup.strategy.seq_len
    seen = seq_len * (0.5 if causal else 1.0)
    if shape.window:
        w = min(shape.window, seq_len)
        windowed = w - w * w / (2 * seq_len) if causal else w
        seen = shape.full_share * seen + (1 - shape.full_share) * windowed
    return 2.0 * setup.tokens * seen * (shape.q_dim + shape.v_dim) / setup.strategy.tensor


def recomputed_products(setup: Setup, busiest: bool = False) -> tuple[Product, ...]:
    """Products that a recomputed block computes again. It stops before the last product, whose result is not needed.

    "selective" keeps every second product, the first included, and attention, as torchtitan does; "products" keeps all
    products and attention, as `shardlab.recompute.save_products` does.
    """
    first = {"full": 0, "selective": 1}.get(setup.strategy.recompute)
    products = block_products(setup, busiest)
    if setup.shape.experts:  # none of the grouped products is kept, and all of their results are needed
        plain = tuple(p for p in products if p.groups == 1)
        return () if first is None else plain[first :: 1 + first] + products[len(plain) :]
    return () if first is None else tuple(p for p in products[first :: 1 + first] if p is not products[-1])


def recomputed_attention(setup: Setup) -> float:
    """Share of a block's attention that is computed again, if the block is recomputed."""
    return 1.0 if setup.strategy.recompute == "full" else 0.0


def recomputed_blocks(setup: Setup) -> float:
    """Share of the blocks that are recomputed."""
    n_layers = setup.shape.n_layers
    return sum(map(setup.strategy.recomputes, range(1, n_layers + 1))) / n_layers


def model_flops(setup: Setup, causal: bool = False) -> float:
    """FLOPs of one GPU in a step, forward and backward, if the job's are spread evenly. See [Note: MFU]."""
    block = _mean_of_blocks(setup, lambda of: _with_backward(block_products(of))) + 3 * attention_flops(setup, causal)
    return _of_a_step(setup, block, _with_backward(head_products(setup)))


def hardware_flops(setup: Setup, causal: bool = False) -> float:
    """FLOPs of `model_flops` and of recomputation, without what a fused attention kernel recomputes inside itself."""
    again = _mean_of_blocks(setup, lambda of: sum(p.flops for p in recomputed_products(of)))
    again += recomputed_attention(setup) * attention_flops(setup, causal)
    head = sum(p.flops for p in recomputed_head(setup))
    return model_flops(setup, causal) + _of_a_step(setup, recomputed_blocks(setup) * again, head)


def _of_a_step(setup: Setup, block: float, head: float) -> float:
    s = setup.strategy
    return s.accumulation * (setup.shape.n_layers * block + head) / s.pipeline


def _mean_of_blocks(setup: Setup, of_block: Callable[[Setup], float]) -> float:
    """Return the mean over all blocks of a mixture, some of which may have no experts."""
    share = setup.shape.dense_layers / setup.shape.n_layers
    return of_block(setup) if not share else (1 - share) * of_block(setup) + share * of_block(setup.dense)


def _with_backward(products: tuple[Product, ...]) -> float:
    return sum(p.flops + sum(q.flops for q in p.backward()) for p in products)


def _is_lora(setup: Setup) -> bool:
    return setup.strategy.lora_rank > 0


def _with_lora(setup: Setup, name: str, inner: float, columns: float) -> list[Product]:
    """Return the product of the linear layer and, with LoRA, the two narrow ones."""
    rows, rank = setup.tokens, setup.strategy.lora_rank
    found = [Product(name, rows, inner, columns, frozen=_is_lora(setup))]
    if setup.strategy.adapts(name):
        found += [Product(f"{name}.lora_a", rows, inner, rank), Product(f"{name}.lora_b", rows, rank, columns)]
    return found
