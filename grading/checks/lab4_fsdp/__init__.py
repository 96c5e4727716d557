"""Lab 4: FSDP under a memory budget.

DDP does not fit; FSDP by block does. A model twice as deep fits with activation checkpointing. Then the shards move to
the host, at a price. `lab4.depth`, `lab4.price` and `lab4.efficiency` judge arithmetic on drawn sizes. The other checks
run the student's wrapping on ranks: what it holds at the peak (`fits`, `larger`) and between steps (`sharded`), what it
sends and frees (`units`), what it computes (`recompute`), what it copies (`offload`), and how long a step takes when
messages take time (`speed`).
"""
