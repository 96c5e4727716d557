"""Asynchronous tensor parallelism: how long the messages of a block travel behind the products that they belong to.

A gather is cut into its t - 1 hops, and the product that needs it into t chunks; each hop but none of the first chunk's
hides behind a chunk: (t-1) max(hop, chunk) + chunk. So of a message at most (t-1)/t of its product's time is hidden. A
product whose result is scattered is the mirror image. In backward it is the product that makes the input's gradient.
Smaller products are taken to be as efficient as whole ones, and copies to cost them nothing: both are bounds.

Source: Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition";
torch.distributed._symmetric_memory, _fused_all_gather_matmul and _fused_matmul_reduce_scatter.
"""

from shardplan.flops import Product, block_products
from shardplan.planned_job import Setup
from shardplan.speed.collectives import seconds
from shardplan.speed.kernels import product_s
from shardplan.traffic.model_parallel import tensor_sends


def hidden_s(setup: Setup) -> tuple[float, float]:
    """Seconds of a block's messages that are hidden, forward and backward."""
    if not setup.strategy.async_tensor:
        return 0.0, 0.0
    gather_s, scatter_s = (seconds(setup, send) for send in tensor_sends(setup, False)["forward"])
    forward_s = backward_s = 0.0
    for needs_gather, products in _groups(setup):
        before_s, after_s = (gather_s, scatter_s) if needs_gather else (scatter_s, gather_s)
        forward_s += _behind(setup, before_s, products)
        backward_s += _behind(setup, after_s, [p.backward()[0] for p in products])
    return forward_s, backward_s


def _groups(setup: Setup) -> list[tuple[bool, list[Product]]]:
    """Return (whether their input is gathered, products): into attention, out of it, into the feed-forward, out."""
    found = [p for p in block_products(setup) if p.name != "router"]
    attention = [p for p in found if p.name.startswith("attention.")]
    others = [p for p in found if p not in attention]
    parts = [(of, end) for of, end in ((attention, "out"), (others, "down"))]
    return [
        (needs_gather, [p for p in of if p.name.endswith(end) != needs_gather])
        for of, end in parts
        for needs_gather in (True, False)
    ]


def _behind(setup: Setup, message_s: float, products: list[Product]) -> float:
    share = 1 - 1 / setup.strategy.tensor
    return min(message_s, share * sum(product_s(setup, p) for p in products))
