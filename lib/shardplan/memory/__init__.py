"""Bytes of one GPU over a step, term by term.

Read in this order: `states`, what is held between steps; `replicating` (DDP, ZeRO-1 and 2) and `gathering` (FSDP), an
engine's temporary memory; `optimizing` and `offload`; `live` and `activation_sums`, the bookkeeping; `step`, which
walks through a step; `allocator`, what is added to the bytes of tensors.
"""

from shardplan.memory.step import memory_plan

__all__ = ["memory_plan"]
