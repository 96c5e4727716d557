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

from dataclasses import dataclass

from shardplan.planned_job import Setup

# Backward of flash attention recomputes the scores: five products, where forward has two.
FLASH_BACKWARD = 2.5


@dataclass(frozen=True)
class Product:
    """A matrix product on one GPU: `rows` vectors of `inner` elements become `rows` vectors of `columns` elements."""

    name: str
    rows: float
    inner: float
    columns: float
    frozen: bool = False

    @property
    def flops(self) -> float:
        """FLOPs of the product in forward."""
        return 2.0 * self.rows * self.inner * self.columns

    def backward(self) -> tuple["Product", ...]:
        """Return backward's products: (rows x columns) by (columns x inner), and (columns x rows) by (rows x inner)."""
        of_input = Product(f"{self.name}, gradient of the input", self.rows, self.columns, self.inner)
        of_weight = Product(f"{self.name}, gradient of the weight", self.columns, self.rows, self.inner)
        return (of_input,) if self.frozen else (of_input, of_weight)


def block_products(setup: Setup) -> tuple[Product, ...]:
    """Products of a block for one micro-batch, in forward's order. Tensor parallelism splits their columns or rows."""
    s, t = setup.shape, setup.strategy.tensor
    linears = [
        ("attention.query", s.dim, s.q_dim / t),
        ("attention.key", s.dim, s.kv_dim / t),
        ("attention.value", s.dim, s.kv_dim / t),
        ("attention.out", s.q_dim / t, s.dim),
        *([("feed_forward.gate", s.dim, s.hidden_dim / t)] if s.gated else []),
        ("feed_forward.up", s.dim, s.hidden_dim / t),
        ("feed_forward.down", s.hidden_dim / t, s.dim),
    ]
    return tuple(product for linear in linears for product in _with_lora(setup, *linear))


def head_products(setup: Setup) -> tuple[Product, ...]:
    """Products of the output layer."""
    s = setup.shape
    linear = ("output", s.dim, s.vocab_size / setup.strategy.tensor)
    if s.tied:  # the matrix is also the embedding, which LoRA does not change
        return (Product("output", setup.tokens, *linear[1:], frozen=_is_lora(setup)),)
    return tuple(_with_lora(setup, *linear))


def attention_flops(setup: Setup, causal: bool = False) -> float:
    """FLOPs of one block's scores and mix in forward, for this GPU's queries and heads, each with all T positions."""
    heads = setup.shape.n_heads / setup.strategy.tensor * setup.shape.head_dim
    return 4.0 * setup.tokens * setup.strategy.seq_len * heads * (0.5 if causal else 1.0)


def recomputed_products(setup: Setup) -> tuple[Product, ...]:
    """Products that a recomputed block computes again. It stops before the last product, whose result is not needed.

    "selective" keeps every second product, the first included, and attention, as torchtitan does; "products" keeps all
    products and attention, as `shardlab.recompute.save_products` does.
    """
    first = {"full": 0, "selective": 1}.get(setup.strategy.recompute)
    products = block_products(setup)
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
    block = _with_backward(block_products(setup)) + 3 * attention_flops(setup, causal)
    return _of_a_step(setup, block, _with_backward(head_products(setup)))


def hardware_flops(setup: Setup, causal: bool = False) -> float:
    """FLOPs of `model_flops` and of recomputation, without what a fused attention kernel recomputes inside itself."""
    again = sum(p.flops for p in recomputed_products(setup))
    again += recomputed_attention(setup) * attention_flops(setup, causal)
    return model_flops(setup, causal) + _of_a_step(setup, recomputed_blocks(setup) * again, 0.0)


def _of_a_step(setup: Setup, block: float, head: float) -> float:
    s = setup.strategy
    return s.accumulation * (setup.shape.n_layers * block + head) / s.pipeline


def _with_backward(products: tuple[Product, ...]) -> float:
    return sum(p.flops + sum(q.flops for q in p.backward()) for p in products)


def _is_lora(setup: Setup) -> bool:
    return setup.strategy.lora_rank > 0


def _with_lora(setup: Setup, name: str, inner: float, columns: float) -> list[Product]:
    """Return the product of the linear layer and, with LoRA, the two narrow ones."""
    rows, rank = setup.tokens, setup.strategy.lora_rank
    found = [Product(name, rows, inner, columns, frozen=_is_lora(setup))]
    if _is_lora(setup):
        found += [Product(f"{name}.lora_a", rows, inner, rank), Product(f"{name}.lora_b", rows, rank, columns)]
    return found
