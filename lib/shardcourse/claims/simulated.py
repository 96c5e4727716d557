"""Checks of torch's FSDP2 and DDP on a simulated network, where messages take as long as on a slow link."""

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
    """Check whether `one` is over 3% faster than `other`, if a block's messages take as long as its computation."""
    return {"4 ranks, 20 MB/s": _step_s()[other] > 1.03 * _step_s()[one]}


@cache
def _step_s() -> dict[str, float]:
    """Return the fastest step of each variant: a disturbance only makes a step longer."""
    args = (tuple(VARIANTS.values()), 0.012, 0.024, 3)
    times = launch(step_times, 4, *args, device="cpu", network=simulated("20 MB/s, 1 ms"), stream=False)[0]
    return {name: min(seconds) for name, seconds in zip(VARIANTS, times, strict=True)}
