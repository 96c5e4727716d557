"""Activations that go to the host after a block's forward and come back for its backward; the last block's stay.

A block's copies run beside the next one's computation, so two blocks' activations are on the GPU at a time.
"""

from collections.abc import Iterator
from functools import lru_cache

from shardplan.activations.parts import block
from shardplan.activations.sizes import Chosen
from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage


def away_bytes(setup: Setup, stage: Stage) -> float:
    """Bytes of one micro-batch that a stage's blocks copy to the host."""
    return sum(_of_blocks(setup, stage)) if setup.strategy.offload_activations else 0.0


def _of_blocks(setup: Setup, stage: Stage) -> Iterator[float]:
    for number in range(1, stage.n_blocks):
        of = setup.dense if number <= stage.n_dense else setup
        yield kept_bytes(Chosen.of(of), setup.strategy.recomputes(number))


@lru_cache(1024)
def kept_bytes(chosen: Chosen, recomputed: bool, on_gpu: bool = True) -> float:
    """Bytes of what one block keeps for its backward."""
    return sum(term.n_bytes for term in block(chosen, recomputed, on_gpu=on_gpu).kept)
