"""Lab 4 on the ranks: train the given model as the submission wrapped it, and record a step."""

import gc
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from grading.checks.lab4_fsdp.arithmetic_answers_on_rank import efficiency, largest_depth, price
from grading.checks.lab4_fsdp.gradients_and_steps_on_ranks import record_learning
from grading.checks.lab4_fsdp.host_device_bytes import Crossings
from grading.checks.lab4_fsdp.refused_finished_code import finished_answers
from grading.judge.timed_laps import serve_laps
from grading.judge.verdict_pictures import moments
from shardlab import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.step_time import time_step
from shardlab.measure.traffic import record_traffic
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.nested_tensors import plain_tensors
from shardlab.text_batches import batch
from shardlab.tier import TIERS, Tier
from shardplan.sharding_evidence import probe
from shardsim import slept_computation
from shardsim.cpu_streams import run_ahead
from shardsim.slept_computation import sleep_in

# MiB a rank: on CPUs two thirds of the planner's figure for DDP; on GPUs see shardplan.tiers
BUDGETS = {tier.name: tier.budget_mib for tier in TIERS.values()}
OTHER_BLOCKS = 2
STEPS = 3  # the first one creates the optimizer's states
LAP_BLOCKS, LAP_SEQ_LEN = 6, 8
LAP_FORWARD_S, LAP_BACKWARD_S = 0.030, 0.060  # a block's; gathering it takes about as long as its forward
LAP_NETWORK = "25 MB/s, 2 ms"
WARM_UP_STEPS, TIMED_STEPS = 2, 5


def learning_rate(seed: int) -> float:
    """Return the learning rate of this grading; none is AdamW's default."""
    return (5e-4, 2e-3, 3e-3)[seed % 3]


def config_of(tier: Tier, depth: int) -> ModelConfig:
    """Return the tier's model, `depth` times as deep."""
    return replace(tier.model, n_layers=depth * tier.model.n_layers)


def other_config(config: ModelConfig) -> ModelConfig:
    """Return another model, of one block more and of half the width."""
    return replace(config, n_layers=config.n_layers + 1, dim=config.dim // 2, hidden_dim=config.hidden_dim // 2)


def build(config: ModelConfig, seed: int) -> Transformer:
    """Build the model with the same weights on every rank, drawn on the rank's device."""
    torch.manual_seed(seed)
    with local_device():
        return Transformer(config)


def batches(tier: Tier, seed: int, count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sizes = dict(global_batch=tier.micro_batch * world_size, seq_len=tier.seq_len)
    return [batch(seed, step, rank, world_size, **sizes, device=local_device()) for step in range(count)]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> float:
    loss = model(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# References


def ddp(model: nn.Module, lr: float):
    model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def by_block(model: nn.Module, lr: float):
    for unit in (*model.blocks, model):
        fully_shard(unit)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def by_block_checkpointed(model: nn.Module, lr: float):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block)
    return by_block(model, lr)


def reference(model: nn.Module, lr: float):
    """Wrap the model for the losses to compare with: by DDP, or on GPUs, where DDP does not fit, by FSDP.

    The losses are the same.
    """
    return ddp(model, lr) if local_device().type == "cpu" else by_block_checkpointed(model, lr)


# Drills


def train(implementation, tier: str, seed: int, depth: int) -> dict:
    """Return this rank's losses in three steps, and the most bytes that were live on the device meanwhile."""
    data = batches(TIERS[tier], seed)
    model, optimizer = implementation(build(config_of(TIERS[tier], depth), seed), learning_rate(seed))
    with MemoryTracker(model, optimizer, device=local_device()) as memory:
        memory.label("other", *_every_tensor())  # a kept tensor takes memory even if no step touches it
        losses = [train_step(model, optimizer, *b) for b in data]
    return {
        "losses": losses,
        "peak": memory.peak.by_category(),
        "where": memory.peak.where,
        "moments": moments(memory),
    }


def _every_tensor() -> list[Tensor]:
    """Return all floating-point tensors that Python knows."""
    gc.collect()
    with torch._C.DisableTorchFunctionSubclass():
        return [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.is_floating_point()]


def learn(implementation, tier: str, seed: int, depth: int) -> dict:
    """Return what the wrapped model learns in three batches, see `record_learning`. The lr makes decay visible.

    A smaller model was wrapped before, takes a step, and must not matter.
    """
    data, lr = batches(TIERS[tier], seed), 10 * learning_rate(seed)
    other, its_optimizer = implementation(build(replace(TIERS[tier].model, n_layers=OTHER_BLOCKS), seed + 1), lr)
    model, optimizer = implementation(build(config_of(TIERS[tier], depth), seed), lr)
    train_step(other, its_optimizer, *data[0])
    return record_learning(model, optimizer, lr, data)


def record_step(implementation, tier: str, seed: int, depth: int) -> dict:
    """Record what a step in the steady state holds and sends (see `sharding_evidence`), and its FLOPs.

    `other`: the same of another model, which is wrapped after the first one is gone.
    """
    config = config_of(TIERS[tier], depth)
    first = _record(implementation, config, tier, seed)
    gc.collect()
    return first | {"other": _record(implementation, other_config(config), tier, seed + 1)}


def _record(implementation, config: ModelConfig, tier: str, seed: int) -> dict:
    data = batches(TIERS[tier], seed, 1)[0]
    model, lr = build(config, seed), learning_rate(seed)
    with finished_answers() as finished:
        model, optimizer = implementation(model, lr)
    evidence = probe(model, optimizer, lambda: model(*data))
    with FlopCounterMode(display=False) as counter, MemoryTracker(model, optimizer) as memory:
        loss = model(*data)
        in_forward = max(now["unsharded"] + now["buckets"] for _, now in memory.timeline())
        loss.backward()
    torchs = any(isinstance(m, (FSDPModule, FullyShardedDataParallel)) for m in model.modules())
    return {
        "evidence": asdict(evidence),
        "flops": counter.get_total_flops(),
        "whole_in_forward": in_forward,
        "torchs": torchs,
        "finished": sorted(finished),
    }


def offload(implementation, tier: str, seed: int) -> dict:
    """Return losses, bytes that one step asks to copy between device and host, and parameter bytes on the device."""
    data = batches(TIERS[tier], seed)
    model, lr = build(config_of(TIERS[tier], 1), seed), learning_rate(seed)
    with finished_answers() as finished:
        model, optimizer = implementation(model, lr)
    losses = [train_step(model, optimizer, *b) for b in data]
    with Crossings(model) as crossings, record_traffic() as traffic:
        train_step(model, optimizer, *data[-1])
    states = [t for state in optimizer.state.values() for t in plain_tensors(list(state.values())) if t.numel() > 1]
    shards = [t for p in model.parameters() for t in plain_tensors(p)]
    copies = {"to_device": crossings.to_device_bytes, "to_host": crossings.to_host_bytes}
    return copies | {
        "losses": losses,
        "on_device": sum(t.nbytes for t in [*shards, *states] if t.device.type == "cuda"),
        "sent": [(c.kind, len(c.members), sum(math.prod(shape) for shape in c.shape)) for c in traffic.collectives],
        "torchs": any(isinstance(m, FSDPModule) for m in model.modules()),
        "finished": sorted(finished),
    }


def ddp_peaks(implementation, seed: int, instances: list[dict]) -> dict:
    """Return the peak bytes of torch's DDP at each of an instance's `depths`, and the seconds that this took."""
    start = time.monotonic()
    peaks = [[_ddp_peak(seed, i["config"], i["micro_batch"], i["seq_len"], n) for n in i["depths"]] for i in instances]
    return {"peaks": peaks, "seconds": time.monotonic() - start}


def _ddp_peak(seed: int, config: dict, micro_batch: int, seq_len: int, n_layers: int) -> int:
    tier = Tier("", dist.get_world_size(), "cpu", ModelConfig(**config | {"n_layers": n_layers}), micro_batch, seq_len)
    data = batches(tier, seed)
    model, optimizer = ddp(build(tier.model, seed), 1e-3)
    with MemoryTracker(model, optimizer) as memory:
        for b in data:
            train_step(model, optimizer, *b)
    return memory.peak.peak_bytes


def laps(implementation, address: str) -> None:
    """Serve laps of one forward and backward each; computation is slept and the network simulated.

    The squared norm of this rank's gradient shards proves the work, and the number of blocks' sleeps that it took time.
    A smaller model was wrapped before, and must not matter.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    implementation(build(preset("1M", n_layers=OTHER_BLOCKS), 1), 1e-3)
    model = build(preset("1M", n_layers=LAP_BLOCKS), 0)
    for i, block in enumerate(model.blocks):
        sleep_in(block, LAP_FORWARD_S, LAP_BACKWARD_S, name=f"blocks.{i}")
    model, _ = implementation(model, 1e-3)

    def lap(order: dict) -> dict:
        model.zero_grad()
        slept_computation.clear()
        tokens, targets = lap_batch(order["seed"], rank, world_size)
        with run_ahead() if world_size > 1 else nullcontext():
            model(tokens, targets).backward()
            torch.cpu.synchronize()
        done = slept_computation.computations()
        slept = [c.kind for c in done if c.finished_s - c.started_s > LAP_FORWARD_S / 2]
        return {"squares": _squares(model), "slept": [slept.count("forward"), slept.count("backward")]}

    serve_laps(address, lap)


def device_laps(implementation, address: str, tier: str) -> None:
    """Serve laps of one forward and backward each, of the tier's model on this rank's device.

    The squared norm of this rank's gradient shards proves the work: the reference's ranks find the same in all.
    """
    model, _ = implementation(build(config_of(TIERS[tier], 1), 0), 1e-3)

    def lap(order: dict) -> dict:
        model.zero_grad()
        model(*batches(TIERS[tier], order["seed"], 1)[0]).backward()
        return {"squares": _squares(model)}

    serve_laps(address, lap)


def seconds_of_a_step(implementation, tier: str) -> float:
    """Return the median seconds of a forward and backward of the tier's model, with each rank's batch as in a lap."""
    model, _ = implementation(build(config_of(TIERS[tier], 1), 0), 1e-3)

    def step() -> None:
        model.zero_grad()
        model(*batches(TIERS[tier], 0, 1)[0]).backward()
        _squares(model)  # as a lap does

    return median([time_step(step) for _ in range(WARM_UP_STEPS + TIMED_STEPS)][WARM_UP_STEPS:])


def _squares(model: nn.Module) -> float:
    """Return the squared norm of this rank's gradients. A rank may have no part of a parameter, and no gradient."""
    return sum(_local(p.grad).double().square().sum().item() for p in model.parameters() if p.grad is not None)


def lap_batch(seed: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    return batch(seed, 0, rank, world_size, global_batch=world_size, seq_len=LAP_SEQ_LEN)


def _local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


ON_ONE_RANK = (largest_depth, price, efficiency)  # drills of another file

REFERENCE = {"train": reference, "learn": reference, "ddp_peaks": None}
REFERENCE |= dict.fromkeys(("record_step", "laps", "device_laps", "seconds_of_a_step"), by_block)
