"""What is behind some choices of a plan, a line each: of Muon, where its products are computed and what they send."""

from collections.abc import Iterator

from shardplan.formatting import gib, seconds
from shardplan.planned_job import Setup
from shardplan.speed import muon
from shardplan.stage_parameters import stages
from shardplan.traffic.muon import muon_sends


def explained(setup: Setup) -> Iterator[tuple[str, str]]:
    """Yield (label, words)."""
    if setup.strategy.optimizer == "muon":
        yield "Muon: ", _muon(setup)


def _muon(setup: Setup) -> str:
    slowest = max(stages(setup), key=lambda stage: muon.newton_schulz_s(setup, stage))
    work = f"products of a step {seconds(muon.newton_schulz_s(setup, slowest))}"
    if not setup.strategy.sharded[0]:
        return f"{work}, on every rank the same."
    n_bytes = sum(send.bytes for send in muon_sends(setup, slowest))
    sent = f"{gib(n_bytes)} sent by a GPU in {seconds(muon.messages_s(setup, slowest))}"
    return f"{setup.strategy.muon_way}: {work} on the busiest rank, {sent}."
