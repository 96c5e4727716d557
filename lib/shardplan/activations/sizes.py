"""Sizes of the letters of a shape on one rank, in elements.

B sequences, T positions, T1 all but the last, T128 the same padded to 128, S positions of the residual stream (T, but
T/t where t tensor-parallel ranks split sequences), P positions of the keys that attention sees, C tokens of a chunk of
the loss, D model width, H query heads, K key/value heads, E head width, Q = H E, G = K E, F hidden width, V vocabulary
(Y whole), L learned positions, R a LoRA's rank. Of a mixture: X experts, Z for each token, M pairs of a token and an
expert, W an expert's width, U the shared experts'. Of latent attention: A the queries' rank, I the keys' and values', J
the same with the turned part, N all heads' keys that are not turned and values, O all heads' values.
"""

from dataclasses import replace
from math import ceil, prod
from typing import NamedTuple

from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.strategy import Strategy

UNRELATED = (  # fields that do not affect what one micro-batch makes on one rank
    "shard_size",
    "optimizer",
    "optimizer_kernel",
    "muon_way",
    "offload",
    "offload_activations",
    "accumulation",
    "accumulate_unsharded",
    "recompute_every",
    "wrap",
    "bucket_cap_mb",
    "gradient_as_bucket_view",
    "expandable_segments",
    "pipeline",
    "virtual_stages",
    "schedule",
    "async_tensor",
    "sequence_first",
    "once_a_rank",
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
            "T1": positions - 1,
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
            "Y": shape.vocab_size,
            "L": shape.learned_positions,
            "R": strategy.lora_rank,
        }
        self.letters |= _experts(setup, positions) | _latent(shape, t)

    def __call__(self, dims: str) -> int:
        parts = dims.split()
        whole = prod(self.letters.get(part) or int(part) for part in parts if not part.startswith("/"))
        return whole // prod(int(part[1:]) for part in parts if part.startswith("/"))

    def shown(self, dims: str) -> str:
        """Format dims for people: "B T/t D", "B T H E"."""
        positions = "T/c" if self.context else "T"
        heads, kv_heads = ("H/t", "K/t") if self.tensor else ("H", "K")
        by_letter = {"T": positions, "P": "T", "H": heads, "K": kv_heads, "Q": f"{heads} E", "G": f"{kv_heads} E"}
        by_letter |= {letter: f"{letter}/t" for letter in "FVWU" if self.tensor}
        by_letter |= {
            "S": f"{positions}/t" if self.splits else positions,
            "T128": "T rounded up to 128",
            "T1": f"({positions} - 1)",
        }
        return " ".join(by_letter.get(part, part) for part in dims.split())


def _experts(setup: Setup | Chosen, positions: int) -> dict[str, int]:
    e, strategy = setup.shape.experts, setup.strategy
    if not e:
        return {}
    pairs = ceil(strategy.micro_batch * positions * e.per_token * strategy.imbalance)
    widths = {"W": -(-e.hidden_dim // strategy.tensor), "U": -(-e.shared_dim // strategy.tensor)}
    return {"M": pairs, "X": e.number, "Z": e.per_token, "X/e": e.number // strategy.expert, **widths}


def _latent(shape: Shape, t: int) -> dict[str, int]:
    a, heads = shape.latent, shape.n_heads // t
    if not a:
        return {}
    keys, values = heads * a.plain_dim, heads * a.value_dim
    ranks = {"A": a.query_rank, "I": a.kv_rank, "J": a.kv_rank + a.turned_dim, "J-I": a.turned_dim}
    return ranks | {"N": keys + values, "N-O": keys, "O": values, "E/2": a.turned_dim // 2}


def _chunk(setup: Setup | Chosen, positions: int) -> int:
    """Number of tokens whose logits are made at a time."""
    shape, strategy = setup.shape, setup.strategy
    tokens = strategy.micro_batch * positions
    if strategy.cross_entropy == "fused":
        at_a_time = -(-tokens // -(-shape.vocab_size // shape.dim))
        return min(tokens, 1 << (at_a_time - 1).bit_length())
    return -(-tokens // strategy.cross_entropy_chunks)
