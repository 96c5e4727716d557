"""Plans tried on real ranks, for lesson 14: `time_steps` on an imitated cluster, and `peaks` of memory.

[Note: scale] Every matrix of the stand-in is 32 times as narrow and as short as that of Llama 3.2 1B. So each message
has a 1024th of the bytes. The network has a 1024th of the bandwidth, so messages take as long as those of the real job.
Blocks and output layer sleep for as long as the plan says that a GPU computes. PyTorch's engines, their messages, and
what waits for what are real. So a plan's messages and overlap can be wrong here, and its computing can't.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn

from shardbench.plan_ranks import batch, build, peak
from shardlab import launch
from shardlab.measure.ledger import Memory
from shardlab.measure.step_time import time_step
from shardlab.model import ModelConfig, Transformer, preset
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Moment, Plan
from shardplan.shape import Shape
from shardsim import simulated
from shardsim.cpu_streams import run_ahead
from shardsim.network import Network
from shardsim.slept_computation import sleep_in

NARROWER = 32
STAND_IN = Shape.of("1B / 1024", ModelConfig(128_256 // 32, 2048 // 32, 16, 4, 1, 8192 // 32, 64, tied=True))
LESSON_3M = Shape.of("3M", preset("3M"))
SMALL = Shape.of("small", ModelConfig(256, 64, 4, 4, 2, 192, 256))


def that_run_here(setups: Mapping[str, Setup]) -> dict[str, Setup]:
    """Leave out setups with fewer bits if torchao is not installed, and QLoRA before PyTorch 2.12.

    Before 2.12 its FSDP2 shards no integers, which weights in 4 bits are.
    """
    torchao, sharded = find_spec("torchao") is not None, torch.__version__ >= "2.12"
    return {
        name: setup
        for name, setup in setups.items()
        if (torchao or setup.strategy.optimizer != "adamw-8bit")
        and (torchao and sharded or not setup.strategy.base_4bit)
    }


def planned_peaks(setups: Mapping[str, Setup], device: str) -> dict[str, Moment]:
    """Return the moment of each setup's planned peak on this kind of device."""
    return {name: memory_plan(setup, on_gpu=device == "cuda").peak for name, setup in setups.items()}


def peaks(setups: Mapping[str, Setup], device: str) -> dict[str, Memory]:
    """Return the peak of each setup's third step on the fullest of its ranks. All have the same number of ranks."""
    (n,) = {setup.world_size for setup in setups.values()}
    ranks = launch(_peaks, n, dict(setups), device=device, stream=False, timeout_s=300)
    return {name: max((found[name] for found in ranks), key=lambda m: m.peak_bytes) for name in setups}


def _peaks(setups: Mapping[str, Setup]) -> dict[str, Memory]:
    return {name: peak(setup) for name, setup in setups.items()}


def time_steps(plans: Mapping[str, Plan], rounds: int = 1) -> dict[str, float]:
    """Return the seconds of each plan's step on its own number of ranks, one node each; the fastest of `rounds`.

    The plans are of Llama 3.2 1B in "bf16-master", all for the same GPUs. They take turns, a step each.
    """
    (machine,), (n,) = ({getattr(p.setup, name) for p in plans.values()} for name in ("machine", "world_size"))
    network = Network(1, n, machine.between).scaled(latency=1.0, bandwidth=1 / NARROWER**2)
    jobs = {name: (p.setup, p.speed.parts_s) for name, p in plans.items()}
    times = launch(_time_steps, n, jobs, rounds, device="cpu", network=simulated(network), stream=False, timeout_s=300)
    return times[0]


def _time_steps(jobs: Mapping[str, tuple[Setup, Mapping[str, float]]], rounds: int) -> dict[str, float]:
    torch.set_num_threads(1)
    steps = {name: _step(*job) for name, job in jobs.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 + rounds):  # the first warms up
        for name, step in steps.items():
            times[name].append(time_step(step))
    return {name: min(seconds[1:]) for name, seconds in times.items()}


def _shares_of_computing(model: Transformer) -> Iterator[tuple[nn.Module, float]]:
    """Yield each block, and the norm before the output layer for what is left: FLOPs are as many as parameters."""
    n_params = sum(p.numel() for p in model.parameters())
    shares = [sum(p.numel() for p in block.parameters()) / n_params for block in model.blocks]
    yield from zip((*model.blocks, model.norm), (*shares, 1 - sum(shares)), strict=True)


def _step(planned: Setup, parts_s: Mapping[str, float]) -> Callable[[], None]:
    cap_mb = planned.strategy.bucket_cap_mb / NARROWER**2
    small = {"seq_len": 8, "bucket_cap_mb": cap_mb, "optimizer": "sgd", "optimizer_kernel": "forloop"}
    setup = replace(planned, shape=STAND_IN, strategy=replace(planned.strategy, **small))
    engine, data = build(setup), batch(setup)
    model = getattr(engine.module, "module", engine.module)
    for module, share in _shares_of_computing(model):
        sleep_in(module, parts_s["computation"] / 3 * share)

    def step() -> None:
        engine.backward(engine.module(*data))
        engine.step()
        engine.zero_grad()
        time.sleep(parts_s["optimizer"])

    return run_ahead()(step) if setup.strategy.sharded[0] else step
