"""Groups of ranks that communicate, and where in the cluster their members are.

The mesh is (pipeline, replicate, shard, context, tensor), tensor innermost. Expert-parallel ranks are neighbours among
those that share the data, as torchtitan has it. Ranks that are neighbours in the mesh are
neighbours in the cluster, so the groups that send most stay inside a node. A group's members are `stride` ranks apart.

All groups of a kind communicate at once. On a node of g GPUs a group has k members, and g/k groups share the network
cards: a group's part of the cards is k/g.

Source: torch.distributed.device_mesh (the last dimension is contiguous); torchtitan's ParallelDims for the order.
"""

from dataclasses import dataclass, replace

from shardplan.planned_job import Setup


@dataclass(frozen=True)
class Group:
    name: str  # one of NAMES, or "ends"
    nodes: int
    ranks_per_node: int
    cards: float  # network cards of a node that are this group's

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def share_between(self) -> float:
        """Share of a rank's ring traffic that leaves its node: a rank is last of its node in one of k rings."""
        return 1 / self.ranks_per_node if self.nodes > 1 else 0.0


NAMES = ("tensor", "context", "expert", "same experts", "shard", "replicate", "data", "pipeline")


def group(setup: Setup, name: str) -> Group:
    size, stride = _size_and_stride(setup)[name]
    on_a_node = min(setup.machine.gpus_per_node, setup.world_size)
    k = max((d for d in range(1, min(size, on_a_node // stride) + 1) if size % d == 0), default=1)
    return Group(name, size // k, k, setup.machine.nics_per_node * k / on_a_node)


def ends(setup: Setup) -> Group:
    """Return a pipeline's group of two ranks, which hold the same part of its first and its last stage."""
    pipeline = group(setup, "pipeline")
    if pipeline.nodes == 1:
        return replace(pipeline, name="ends", ranks_per_node=2)
    return Group("ends", 2, 1, pipeline.cards / pipeline.ranks_per_node)


def _size_and_stride(setup: Setup) -> dict[str, tuple[int, int]]:
    s = setup.strategy
    return {
        "tensor": (s.tensor, 1),
        "context": (s.context, s.tensor),
        "shard": (setup.shards, s.tensor),
        "expert": (s.expert, s.tensor),
        "same experts": (setup.shards // s.expert, s.tensor * s.expert),
        "replicate": (setup.data_ranks // setup.shards, s.tensor * setup.shards),
        "data": (setup.data_ranks, s.tensor),
        "pipeline": (s.pipeline, s.tensor * setup.data_ranks),
    }
