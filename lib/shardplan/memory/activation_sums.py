"""Activations for a walk through a step: added up once for all blocks and all setups that have the same ones."""

from functools import cache, lru_cache

from shardplan import activations
from shardplan.activations.sizes import Chosen
from shardplan.memory.live import Terms, total
from shardplan.planned_job import Setup
from shardplan.records import Part
from shardplan.stage_parameters import Stage


class Walk:
    """Activations of a part. `backward` has for each point: live terms; at most what is left of them when the point's
    new gradients are moved; names of the new gradients. `gradients`: the names of all of them."""

    def __init__(self, part: Part) -> None:
        self.kept, self.until_loss = part.kept, part.until_loss
        self.fullest_forward = part.forward.terms
        self.backward: list[tuple[Terms, Terms, tuple[str, ...]]] = []
        known: set[str] = set()
        for point, following in zip(part.backward, (*part.backward[1:], None), strict=False):
            new = tuple(name for name in point.gradients if name not in known)
            known.update(new)
            same = following and following.gradients == point.gradients
            afterwards = min(point.terms, following.terms, key=total) if same else point.terms
            self.backward.append((point.terms, afterwards, new))
        self.gradients = tuple(name for *_, new in self.backward for name in new)


class Walks:
    """Walks of all setups whose activations are the same, each made on first use."""

    def __init__(self, setup: Chosen, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.embedding = cache(lambda: Walk(activations.embedding(setup, on_gpu=on_gpu)))
        self.head = cache(lambda: Walk(activations.head(setup, on_gpu=on_gpu)))
        self.block = cache(
            lambda recomputed, first: Walk(activations.block(setup, recomputed, first=first, on_gpu=on_gpu))
        )

    def blocks(self, setup: Setup, stage: Stage) -> list[Walk]:
        """Return a walk for each block. The first may differ: LoRA trains nothing before it."""
        s, numbers = setup.strategy, range(1, stage.n_blocks + 1)
        dense = walks(Chosen.of(setup.dense), self.on_gpu) if stage.n_dense else self
        kinds = (dense if n <= stage.n_dense else self for n in numbers)
        flags = ((s.recomputes(n), stage.first and n == 1 and s.lora_rank > 0) for n in numbers)
        return [kind.block(*of) for kind, of in zip(kinds, flags, strict=True)]


walks = lru_cache(1024)(Walks)
