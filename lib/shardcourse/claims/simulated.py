"""Torch's FSDP2 and DDP on a simulated network, where messages take the time that a slow link would need."""

from functools import cache

from shardbench.interconnect_runs import Variant, step_times
from shardcourse.claims.claim import Findings
from shardlab import launch
from shardsim import simulated

VARIANTS = {
    "prefetch": Variant("FSDP"),
    "no prefetch": Variant("FSDP", backward_prefetch=False),
    "overlap": Variant("DDP", bucket_bytes=1 << 17),
    "no overlap": Variant("DDP", bucket_bytes=1 << 17, overlap=False),
}


def is_faster(one: str, other: str) -> Findings:
    """By 3% at least, on a network on which a block's messages take as long as it computes."""
    return {"4 ranks, 20 MB/s": _step_s()[other] > 1.03 * _step_s()[one]}


@cache
def _step_s() -> dict[str, float]:
    """The fastest of some steps: what disturbs a step only makes it longer."""
    args = (tuple(VARIANTS.values()), 0.012, 0.024, 3)
    times = launch(step_times, 4, *args, device="cpu", network=simulated("20 MB/s, 1 ms"), stream=False)[0]
    return {name: min(seconds) for name, seconds in zip(VARIANTS, times, strict=True)}
