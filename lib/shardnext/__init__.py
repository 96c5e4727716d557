"""Engines beyond the course's core, apart so that `shardlab` stays small.

`qlora` is LoRA on frozen weights of 4 bits, with optimizer states of 8: torchao's, under fully_shard. `file_offload`
keeps optimizer states in a file, which `file_layout` divides.
"""
