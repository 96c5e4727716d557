"""Bytes of one GPU over a step, term by term.

Read in this order: `states`, what is held between steps; `replicating` (DDP, ZeRO-1 and 2) and `gathering` (FSDP), what
an engine makes for the moment; `optimizing` and `offload`; `live` and `walks`, the account; `moments`, where a step is
walked through; `allocator`, what comes on top of tensors.
"""

from shardlab.simulate.plan.memory.moments import memory_plan

__all__ = ["memory_plan"]
