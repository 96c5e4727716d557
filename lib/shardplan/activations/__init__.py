"""Activations in closed form: what the embedding, a block, or the output layer with its loss makes for a micro-batch.

Read in this order: `sizes` (the letters of a shape), `tape` (how long a tensor lives), `operations`, `norms`,
`attention`, `experts`, `losses`, `adapters`, `compiled` (what each one saves, and makes in backward), `model` (the
model's lines), `eight_bits` (their factors in fp8), `regions` (recomputation), `parts`, `away` (what goes to the host).
"""

from shardplan.activations.parts import block, embedding, head

__all__ = ["block", "embedding", "head"]
