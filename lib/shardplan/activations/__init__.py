"""Activations in closed form: what the embedding, a block, or the output layer with its loss makes for a micro-batch.

Read in this order: `sizes` (the letters of a shape), `tape` (how long a tensor lives), `operations`, `norms`,
`attention`, `experts`, `losses`, `adapters`, `compiled` (what each one saves, and makes in backward), `model` (the
model's lines), `regions` (recomputation), `parts`.
"""

from shardplan.activations.parts import block, embedding, head

__all__ = ["block", "embedding", "head"]
