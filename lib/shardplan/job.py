"""A job: a model, a cluster and a strategy, not checked yet, and what follows from them."""

from dataclasses import dataclass, replace
from typing import Self

from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import Machine


@dataclass(frozen=True)
class Job:
    shape: Shape
    machine: Machine
    world_size: int  # GPUs in all
    strategy: Strategy

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability of the GPUs, as torch.cuda.get_device_capability returns it."""
        return self.machine.gpu.capability

    @property
    def data_ranks(self) -> int:
        """Ranks over which batches are spread, and states can be sharded (context-parallel ranks share shards too)."""
        return self.world_size // self.strategy.tensor // self.strategy.pipeline

    @property
    def shards(self) -> int:
        """Ranks that share one copy of whatever the strategy shards: parameters, gradients or states."""
        return self.strategy.shard_size or self.data_ranks

    @property
    def routed(self) -> float:
        """Number of (token, expert) pairs that the busiest rank computes in a micro-batch, in a block with experts."""
        experts = self.shape.experts
        return self.tokens * experts.per_token * self.strategy.imbalance if experts else 0.0

    @property
    def dense(self) -> Self:
        """The job of the blocks without experts."""
        return replace(self, shape=self.shape.dense, strategy=replace(self.strategy, expert=1))

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.machine.gpus_per_node)

    @property
    def tokens(self) -> int:
        """Number of positions that one GPU computes in a micro-batch."""
        return self.strategy.micro_batch * self.strategy.seq_len // self.strategy.context
