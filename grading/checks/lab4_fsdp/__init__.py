"""Lab 4: FSDP under a memory budget. DDP does not fit; FSDP by block does; a model twice as deep does with activation
checkpointing; then the shards go to the host, at a price. `lab4.depth`, `lab4.price` and `lab4.efficiency` look at
arithmetic on drawn sizes. The others run the student's wrapping on ranks: what it holds at the peak (`fits`, `larger`)
and between steps (`sharded`), what it sends and frees (`units`), what it computes (`recompute`), what it copies
(`offload`), and how long a step takes where messages cost something (`speed`)."""
