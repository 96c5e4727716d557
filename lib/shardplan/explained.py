"""Explain some choices of a plan, a line each: Muon's work, a filled bubble, hidden messages, activations, 8 bits."""

from collections.abc import Iterator
from dataclasses import replace

from shardplan.activations.away import away_bytes
from shardplan.flops import block_products
from shardplan.formatting import gib, seconds
from shardplan.planned_job import Setup
from shardplan.speed import muon, speed_plan
from shardplan.speed.async_tensor import hidden_s
from shardplan.speed.kernels import moved_s, product_s
from shardplan.speed.micro_batch import messages_s, micro_batches
from shardplan.speed.passes import CASTS, block_passes
from shardplan.stage_parameters import stages
from shardplan.traffic.eight_bits import n_scales
from shardplan.traffic.muon import muon_sends
from shardplan.traffic.units import gathered_bytes


def explained(setup: Setup) -> Iterator[tuple[str, str]]:
    """Yield (label, words)."""
    if setup.strategy.optimizer == "muon":
        yield "Muon: ", _muon(setup)
    if setup.strategy.schedule != "1f1b":
        yield "The bubble: ", _bubble(setup)
    if setup.strategy.async_tensor:
        yield "Async TP: ", _async_tensor(setup)
    if setup.strategy.offload_activations:
        yield "Activations: ", _activations(setup)
    if setup.strategy.products != "compute" or setup.strategy.gather != "compute":
        yield "8 bits: ", _eight_bits(setup)


def _bubble(setup: Setup) -> str:
    plain = replace(setup, strategy=replace(setup.strategy, schedule="1f1b"))
    now_s, before_s = (speed_plan(of).parts_s["bubble"] for of in (setup, plain))
    kept = stages(setup)[0].in_flight
    return f"{seconds(now_s)}, with 1F1B {seconds(before_s)}; each rank keeps {kept:g} micro-batches."


def _async_tensor(setup: Setup) -> str:
    hidden, waited = sum(hidden_s(setup)), sum(messages_s(setup, False))
    return f"{seconds(hidden)} of {seconds(hidden + waited)} of a block's messages are hidden."


def _activations(setup: Setup) -> str:
    stage = stages(setup)[0]
    n_bytes, (_, batch) = away_bytes(setup, stage), micro_batches(setup, stage)[-1]
    each_s = n_bytes / setup.machine.host.bandwidth_bytes_per_s
    beside = f"{seconds(each_s)} each way, beside {seconds(batch.on_device.duration_s)} of forward and backward"
    return f"{gib(n_bytes)} of a micro-batch go to the host and come back, {beside}."


def _eight_bits(setup: Setup) -> str:
    s, stage = setup.strategy, stages(setup)[0]
    words = []
    if s.products != "compute":
        products = [p for p in block_products(setup) if s.eight_bits(p.name)]
        plain = replace(setup, strategy=replace(s, products="compute", gather="compute"))
        before_s, after_s = (sum(product_s(of, p) for p in products) for of in (plain, setup))
        casts = next(p for p in block_passes(setup) if p.name == CASTS)
        saved = f"a block's products in forward take {seconds(after_s)} and not {seconds(before_s)}"
        words.append(f"{saved}, and {seconds(moved_s(setup, casts.n_bytes[0]))} of casts")
    if s.gather != "compute":
        sent = gathered_bytes(setup, stage.block)
        plain = sum(w.gathered * w.padded_numel(setup.shards) for w in stage.block)
        n = n_scales(setup, stage.block)
        how = {"fp8": "one message of all scales a step", "fp8-each": f"{n} messages of scales before each"}
        words.append(f"a gather of a block is {gib(sent)} and not {gib(plain)}, {how.get(s.gather, 'scales included')}")
    return "; ".join(words) + "."


def _muon(setup: Setup) -> str:
    slowest = max(stages(setup), key=lambda stage: muon.newton_schulz_s(setup, stage))
    work = f"products of a step {seconds(muon.newton_schulz_s(setup, slowest))}"
    if not setup.strategy.sharded[0]:
        return f"{work}, on every rank the same."
    n_bytes = sum(send.bytes for send in muon_sends(setup, slowest))
    sent = f"{gib(n_bytes)} sent by a GPU in {seconds(muon.messages_s(setup, slowest))}"
    return f"{setup.strategy.muon_way}: {work} on the busiest rank, {sent}."
