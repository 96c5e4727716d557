"""Sizes of the letters of a shape on one rank, in elements.

B sequences, T positions, T128 the same padded to 128, S positions of the residual stream (T, but T/t where t
tensor-parallel ranks split sequences), P positions of the keys that attention sees, C tokens of a chunk of the loss, D
model width, H query heads, K key/value heads, E head width, Q = H E, G = K E, F hidden width, V vocabulary, L learned
positions, R a LoRA's rank.
"""

from dataclasses import replace
from math import prod
from typing import NamedTuple

from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.strategy import Strategy

UNRELATED = (  # fields that do not affect what one micro-batch makes on one rank
    "shard_size",
    "optimizer",
    "optimizer_kernel",
    "offload",
    "accumulation",
    "accumulate_unsharded",
    "recompute_every",
    "wrap",
    "bucket_cap_mb",
    "gradient_as_bucket_view",
    "pipeline",
    "virtual_stages",
)


class Chosen(NamedTuple):
    """Choices of a setup that activations depend on. Setups that differ only in other choices share their parts."""

    shape: Shape
    strategy: Strategy
    capability: tuple[int, int]  # CUDA's compute capability, which decides which attention kernels there are

    @classmethod
    def of(cls, setup: Setup) -> "Chosen":
        by_default = {name: getattr(Strategy, name) for name in UNRELATED}
        strategy = replace(setup.strategy, **by_default)
        return cls(replace(setup.shape, n_layers=1), strategy, setup.capability)


class Sizes:
    """Number of elements: `Sizes(chosen)("B T F")`. Tensor parallelism divides H, K, F, V; context parallelism T."""

    def __init__(self, setup: Setup | Chosen) -> None:
        shape, strategy = setup.shape, setup.strategy
        t = strategy.tensor
        positions = -(-strategy.seq_len // strategy.context)
        kv_heads = max(1, shape.n_kv_heads // t)  # with more ranks than heads, a head has copies
        self.splits, self.tensor, self.context = strategy.sequence_parallel and t > 1, t > 1, strategy.context > 1
        self.letters = {
            "B": strategy.micro_batch,
            "T": positions,
            "S": -(-positions // t) if strategy.sequence_parallel else positions,
            "P": strategy.seq_len,
            "T128": -(-positions // 128) * 128,
            "C": _chunk(setup, positions),
            "D": shape.dim,
            "H": shape.n_heads // t,
            "K": kv_heads,
            "E": shape.head_dim,
            "E/2": shape.head_dim // 2,
            "Q": shape.n_heads // t * shape.head_dim,
            "G": kv_heads * shape.head_dim,
            "F": -(-shape.hidden_dim // t),
            "V": -(-shape.vocab_size // t),
            "L": shape.learned_positions,
            "R": strategy.lora_rank,
        }

    def __call__(self, dims: str) -> int:
        parts = dims.split()
        whole = prod(self.letters.get(part) or int(part) for part in parts if not part.startswith("/"))
        return whole // prod(int(part[1:]) for part in parts if part.startswith("/"))

    def shown(self, dims: str) -> str:
        """Format dims for people: "B T/t D", "B T H E"."""
        positions = "T/c" if self.context else "T"
        heads, kv_heads = ("H/t", "K/t") if self.tensor else ("H", "K")
        by_letter = {"T": positions, "P": "T", "H": heads, "K": kv_heads, "Q": f"{heads} E", "G": f"{kv_heads} E"}
        by_letter |= {letter: f"{letter}/t" for letter in "FV" if self.tensor}
        by_letter |= {"S": f"{positions}/t" if self.splits else positions, "T128": "T rounded up to 128"}
        return " ".join(by_letter.get(part, part) for part in dims.split())


def _chunk(setup: Setup | Chosen, positions: int) -> int:
    """Number of tokens whose logits are made at a time."""
    shape, strategy = setup.shape, setup.strategy
    tokens = strategy.micro_batch * positions
    if strategy.cross_entropy == "fused":
        at_a_time = -(-tokens // -(-shape.vocab_size // shape.dim))
        return min(tokens, 1 << (at_a_time - 1).bit_length())
    return -(-tokens // strategy.cross_entropy_chunks)
