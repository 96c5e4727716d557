"""The setup of a plan: a model, a cluster and a strategy that go together."""

from dataclasses import dataclass

from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardplan.validation import check
from shardsim.machines import Machine


@dataclass(frozen=True)
class Setup:
    """A model, a cluster and a strategy. Raises ValueError with the field and a valid value if they don't match."""

    shape: Shape
    machine: Machine
    world_size: int  # GPUs in all
    strategy: Strategy

    def __post_init__(self) -> None:
        check(self)

    @property
    def data_ranks(self) -> int:
        """Ranks over which batches are spread, and states can be sharded (context-parallel ranks share shards too)."""
        return self.world_size // self.strategy.tensor // self.strategy.pipeline

    @property
    def shards(self) -> int:
        """Ranks that share one copy of whatever the strategy shards: parameters, gradients or states."""
        return self.strategy.shard_size or self.data_ranks

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.machine.gpus_per_node)

    @property
    def tokens(self) -> int:
        """Number of positions that one GPU computes in a micro-batch."""
        return self.strategy.micro_batch * self.strategy.seq_len // self.strategy.context
