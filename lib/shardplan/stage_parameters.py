"""The weights of the fullest pipeline stages, as one rank of a tensor-parallel group holds them.

[Note: tensor parallel] Queries, keys, values, gate and up are cut by rows (each rank computes some heads, some hidden
units), out and down by columns, the embedding and the output by tokens of the vocabulary; norms are whole everywhere.
Source: Shoeybi et al. 2019, "Megatron-LM", section 3.

[Note: experts] Under expert parallelism a rank has X / e whole experts, one below the other in one matrix, which the
other ranks with the same experts share: 1/e as many as share the rest. (In blocks that alternate with dense ones, as
Llama 4's, the dense ones come first here: the bytes are the same.)
Source: pytorch/torchtitan, torchtitan/distributed/expert_parallel.py; Lepikhin et al. 2020, "GShard".

[Note: pipeline] A stage has ceil(layers / stages) blocks. The first stage also has the embedding, and most
micro-batches in flight. The last stage also has the output layer and the loss. The fullest stage is one of the two.

[Note: LoRA] Each matrix W (out, in) of a block is frozen and gets A (rank, in) and B (out, rank). Only A and B are
trained. QLoRA holds W in NF4: half a byte a number, a byte of scale for each 64, a factor for 256 of those.
Source: Hu et al. 2021, "LoRA", section 4.1; Dettmers et al. 2023, "QLoRA", section 3.
"""

from dataclasses import dataclass, replace
from math import ceil, prod

from shardplan.planned_job import Setup
from shardplan.strategy import SCHEDULES

BY_ROWS = ("query", "query_b", "key", "value", "kv_b", "gate", "up", "embedding", "output")
BY_COLUMNS = ("out", "down")


@dataclass(frozen=True)
class Weight:
    name: str
    shape: tuple[int, ...]
    stored: float  # bytes an element, between steps
    gathered: float  # bytes an element, while it computes
    trained: bool = True
    in_8_bits: tuple[float, float] | None = (
        None  # bytes an element as it is sent and as it is kept, if these are others
    )
    spread: int = 1  # ranks that have different experts: a matrix is shared by so many times fewer ranks

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def sent(self) -> float:
        """Bytes an element, as FSDP gathers it."""
        return self.in_8_bits[0] if self.in_8_bits else self.gathered

    @property
    def unsharded(self) -> float:
        """Bytes an element, as FSDP keeps what it has gathered."""
        return self.in_8_bits[1] if self.in_8_bits else self.gathered

    @property
    def orthogonal(self) -> bool:
        """Tell whether Muon updates it: a matrix of a block, not the embedding or the output."""
        return len(self.shape) == 2 and not self.name.startswith(("embedding", "positions", "output"))

    @property
    def gathered_bytes(self) -> float:
        return self.numel * self.gathered

    def shared_by(self, n: int) -> int:
        """Number of ranks that share it, of n that share a copy of the model."""
        return max(1, n // self.spread)

    def shard_numel(self, n: int) -> int:
        """Elements of one rank's share, cut on dim 0 and padded: ceil(rows / n) rows."""
        return ceil(self.shape[0] / self.shared_by(n)) * (self.numel // self.shape[0])

    def padded_numel(self, n: int) -> int:
        """Elements of all shares, as gathered."""
        return self.shared_by(n) * self.shard_numel(n)


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline. Without a pipeline there is one stage, which has the whole model."""

    root: tuple[Weight, ...]
    block: tuple[Weight, ...]
    n_blocks: int
    first: bool
    last: bool
    in_flight: float  # micro-batches between their forward and backward, including the current one
    dense: tuple[Weight, ...] = ()  # of a mixture's first blocks, which have no experts
    n_dense: int = 0

    def of_block(self, number: int) -> tuple[Weight, ...]:
        """Weights of a block, from 1."""
        return self.dense if number <= self.n_dense else self.block

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Weights in the order of the model's parameters."""
        inner = [w for w in self.root if w.name.startswith(("embedding", "positions"))]
        blocks = self.dense * self.n_dense + self.block * (self.n_blocks - self.n_dense)
        return (*inner, *blocks, *(w for w in self.root if w not in inner))


def stages(setup: Setup) -> tuple[Stage, ...]:
    """Return the first and the last stage; without a pipeline, the only one."""
    depth = setup.strategy.pipeline
    if depth == 1:
        return (_stage(setup, True, True, 1),)
    first, last = in_flight(setup)
    return (_stage(setup, True, False, first), _stage(setup, False, True, last))


def in_flight(setup: Setup) -> tuple[float, float]:
    """Micro-batches in flight on the first and the last of p stages: p and 1 under 1F1B.

    Interleaved, with v virtual stages a rank, the first rank computes 2 (p-1) + (v-1) p pieces (each 1/v of its layers)
    before its first backward: p + (p-1)/v micro-batches with the current one. The last rank computes (v-1) p pieces.

    Zero-bubble schedules keep as many on each rank, until the weights' gradients are made: p, or 2 p - 1.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2; Qi et
    al. 2023, "Zero Bubble Pipeline Parallelism", table 2;
    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.3.
    """
    p, v, n = setup.strategy.pipeline, setup.strategy.virtual_stages, setup.strategy.accumulation
    if setup.strategy.schedule != "1f1b":
        a, b = SCHEDULES[setup.strategy.schedule][1]
        return min(a * p - b, n), min(a * p - b, n)
    if v == 1:
        return min(p, n), 1
    return min(p + (p - 1) / v, n), min(((v - 1) * p + 1) / v, n)


def _stage(setup: Setup, first: bool, last: bool, in_flight: float) -> Stage:
    def here(name: str) -> bool:
        at_the_start, at_the_end = name.startswith(("embedding", "positions")), name.startswith(("norm", "output"))
        return (first and at_the_start) or (last and (at_the_end or (setup.shape.tied and name == "embedding.weight")))

    root = {name: shape for name, shape in setup.shape.root().items() if here(name)}
    n_blocks = ceil(setup.shape.n_layers / setup.strategy.pipeline)
    n_dense = min(n_blocks, setup.shape.dense_layers) if first else 0
    of_root, block = _weights(setup, root, lora=False), _weights(setup, setup.shape.block())
    dense = _weights(setup, setup.shape.dense.block()) if n_dense else ()
    return Stage(of_root, block, n_blocks, first, last, in_flight, dense, n_dense)


def _weights(setup: Setup, shapes: dict[str, tuple[int, ...]], lora: bool = True) -> tuple[Weight, ...]:
    s, b = setup.strategy, setup.strategy.bytes
    gathered = b.parameters if b.autocast else b.compute
    weights = []
    for name, whole in shapes.items():
        shape, spread = _on_this_rank(setup, name, whole), s.expert if name.startswith("experts.") else 1
        shape = (shape[0] // spread, *shape[1:])
        if not (lora and len(shape) == 2 and s.lora_rank):
            in_8_bits = _eight_bits(setup, name, shape)
            weights.append(Weight(name, shape, b.parameters, gathered, not s.lora_rank, in_8_bits, spread))
            continue
        weights.append(replace(_frozen_matrix(setup, name, shape, gathered), spread=spread))
        module = name.removesuffix("weight")
        if not s.adapts(module):
            continue
        weights.append(Weight(f"{module}lora_a", (s.lora_rank, shape[1]), b.parameters, gathered))
        weights.append(Weight(f"{module}lora_b", (shape[0], s.lora_rank), b.parameters, gathered))
    return tuple(weights)


def _frozen_matrix(setup: Setup, name: str, shape: tuple[int, ...], gathered: float) -> Weight:
    if not setup.strategy.base_4bit:
        return Weight(name, shape, setup.strategy.bytes.parameters, gathered, trained=False)
    each = nf4_bytes_each(setup.strategy.bytes.parameters)
    return Weight(name, (prod(shape),), each, each, trained=False)  # codes and scales are gathered, never the matrix


def nf4_bytes_each(itemsize: int) -> float:
    """Bytes a number: 4 bits, its part of a scale for 64 (8 bits) and of a factor for 256 scales (`itemsize` bytes)."""
    return 1 / 2 + 1 / 64 + itemsize / (64 * 256)


def _eight_bits(setup: Setup, name: str, shape: tuple[int, ...]) -> tuple[float, float] | None:
    """Return bytes an element as sent and as kept, of a matrix that is gathered in fp8; None if it is not.

    Products in 8 bits use what arrives. Others need it decoded.
    """
    s = setup.strategy
    if s.gather == "compute" or len(shape) != 2 or not s.eight_bits(name):
        return None
    sent = 1 + (4 / shape[1] if s.gather == "fp8-rows" else 0)
    return sent, (s.bytes.compute if s.products == "compute" else 1)


def _on_this_rank(setup: Setup, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    t, module, is_bias = setup.strategy.tensor, name.split(".")[-2], name.endswith("bias")
    if t == 1:
        return shape
    if module in BY_ROWS:
        return (ceil(shape[0] / t), *shape[1:])
    return (shape[0], ceil(shape[1] / t)) if module in BY_COLUMNS and not is_bias else shape
