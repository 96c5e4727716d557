"""Seconds that a GPU computes, each from a roofline: matrix products and attention by FLOPs, the rest by bytes.

    product    the longer of  FLOPs / (peak x share x K / (K + TILE_DEPTH))  and  bytes / (bandwidth x MEMORY)
    attention  FLOPs that the mask leaves / (peak x share x T / (T + LEAD_IN))
    passes     bytes / (bandwidth x MEMORY)

The shares are in `achievable`, each with its origin. K is the inner dimension: a tile of the result is started and
finished once, and in between multiplies K times.

Source: Williams, Waterman & Patterson 2009, "Roofline"; NVIDIA, "Matrix multiplication background user's guide", for
tiles; Dao 2023, "FlashAttention-2".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from shardplan import flops
from shardplan.flops import Product
from shardplan.planned_job import Setup
from shardplan.speed import achievable, passes
from shardplan.speed.passes import Pass

FORWARD, BACKWARD = 0, 1
TILE = 128  # rows of a product's result that are computed together


@dataclass(frozen=True)
class Work:
    """Seconds on the GPU, and how many kernels the host launches for it."""

    products_s: float = 0.0
    attention_s: float = 0.0
    memory_bound_s: float = 0.0
    launches: float = 0.0

    @property
    def seconds(self) -> float:
        return self.products_s + self.attention_s + self.memory_bound_s

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Both:
    """Work of one micro-batch. Recomputation is part of backward."""

    forward: Work
    backward: Work


def block_work(setup: Setup, recomputed: bool) -> Both:
    products, moved = flops.block_products(setup, busiest=True), passes.block_passes(setup)
    attention = flops.attention_flops(setup, causal=setup.strategy.attention != "math")
    forward = _work(setup, products) + _moved(setup, moved, FORWARD) + _attention(setup, attention, FORWARD)
    backward = _gradients(setup, products) + _moved(setup, moved, BACKWARD) + _attention(setup, attention, BACKWARD)
    if recomputed:
        backward += _work(setup, flops.recomputed_products(setup, busiest=True)) + _moved(setup, moved, FORWARD)
        if flops.recomputed_attention(setup):
            backward += _attention(setup, attention, FORWARD)
    return Both(forward, backward)


def root_work(setup: Setup, first: bool, last: bool) -> Both:
    """Work of the embedding, on a pipeline's first stage, and of the output layer and the loss, on its last."""
    products = flops.head_products(setup) if last else ()
    moved = (passes.embedding_passes(setup) if first else []) + (passes.head_passes(setup) if last else [])
    forward = _work(setup, products) + _moved(setup, moved, FORWARD)
    again = _work(setup, flops.recomputed_head(setup) if last else ())
    return Both(forward, again + _gradients(setup, products) + _moved(setup, moved, BACKWARD))


def weight_gradients_s(setup: Setup, n_blocks: int, last: bool) -> float:
    """Seconds of the weights' gradients of a stage for a micro-batch: nobody waits for them before the update."""
    block, head = flops.block_products(setup, busiest=True), flops.head_products(setup) if last else ()
    each = [(n_blocks, p) for p in block] + [(1, p) for p in head]
    return sum(n * product_s(setup, q) for n, p in each for q in p.backward()[1:])


def moved_s(setup: Setup, n_bytes: float) -> float:
    """Seconds in which the GPU reads and writes these bytes in its own memory."""
    return n_bytes / (setup.machine.gpu.hbm_bandwidth * achievable.MEMORY * setup.machine.gpu.pace)


def peak_flops(setup: Setup, each: int = 0) -> float:
    """Peak FLOPs a second with numbers of `each` bytes, by default those of the compute dtype.

    fp32 products do not use the tensor cores, as is torch's default.
    """
    gpu, each = setup.machine.gpu, each or setup.strategy.bytes.compute
    return gpu.flops["fp8"] if each == 1 else gpu.half_flops if each < 4 else gpu.flops["fp32"]


def product_s(setup: Setup, p: Product, each: int = 0) -> float:
    s = setup.strategy
    made = s.bytes.compute  # the result, also of a product in 8 bits
    each = each or (1 if s.products != "compute" and s.eight_bits(p.name) else made)
    each = 4 if s.fp32_logits and p.name == "output" else each
    depth = p.inner / (p.inner + achievable.TILE_DEPTH)
    tiles = ceil(p.rows / TILE) * TILE / p.rows if p.groups > 1 else 1.0  # an expert's last tile may be nearly empty
    computed_s = tiles * p.flops / (peak_flops(setup, each) * _share(setup, each) * depth)
    n_bytes = each * (p.rows * p.inner + p.inner * p.columns) + made * p.rows * p.columns
    return max(computed_s, moved_s(setup, p.groups * n_bytes))


def _share(setup: Setup, each: int = 2) -> float:
    return achievable.product_share(setup.machine.gpu, setup.strategy.attention, each)


def _work(setup: Setup, products: Iterable[Product]) -> Work:
    times_s = [product_s(setup, p) for p in products]
    return Work(products_s=sum(times_s), launches=len(times_s))


def _gradients(setup: Setup, products: Iterable[Product]) -> Work:
    return _work(setup, [q for p in products for q in p.backward()])


def _moved(setup: Setup, found: Iterable[Pass], way: int) -> Work:
    found = list(found)
    n_bytes, launches = sum(p.n_bytes[way] for p in found), sum(p.launches[way] for p in found)
    return Work(memory_bound_s=moved_s(setup, n_bytes), launches=launches)


def _attention(setup: Setup, n_flops: float, way: int) -> Work:
    """Work of a block's attention. Without flash: two products of the (T, T) scores in forward, four in backward."""
    if setup.strategy.attention == "math":
        rate = peak_flops(setup) * _share(setup)
        return Work(attention_s=n_flops * (1, 2)[way] / rate, launches=(2, 4)[way])
    share = achievable.attention_shares(setup.machine.gpu, setup.strategy.attention)[way]
    positions = setup.strategy.seq_len / setup.strategy.context  # of a kernel: a ring has one for each rank's keys
    share *= positions / (positions + achievable.LEAD_IN)
    return Work(attention_s=n_flops * (1, flops.FLASH_BACKWARD)[way] / (peak_flops(setup) * share), launches=1)
