"""Bytes of one GPU over a step, term by term.

Read in this order: `states`, what is held between steps; `replicating` (DDP, ZeRO-1 and 2) and `gathering` (FSDP), what
an engine makes for the moment; `optimizing` and `offload`; `live` and `activation_sums`, the bookkeeping; `step`, which
walks through a step; `allocator`, what comes on top of tensors.
"""

from shardplan.memory.step import memory_plan

__all__ = ["memory_plan"]
