"""The runs on ranks for the benchmark of the simulated network. `interconnect_predictions` has the predictions.

In timed steps computation is slept, so that four ranks on few cores don't slow each other, except in `overhead`.
"""

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardbench.engines import OURS, TORCH, Engine, Library, data_parallel, fsdp1, fsdp2, local_batch
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.step_time import compare, time_step
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.shard_groups import all_gather, reduce_scatter
from shardsim import cpu_streams
from shardsim.process_group import Network, use_network
from shardsim.slept_computation import sleep_in

STAND_IN = ModelConfig(256, 64, n_layers=8, n_heads=4, n_kv_heads=2, hidden_dim=192, max_seq_len=64)
LIBRARIES = {library.name: library for library in (TORCH, OURS)}
MIB = 1 << 20


@dataclass(frozen=True)
class Variant:
    """One way to train the stand-in. With `overlap=False`, computation waits for every message as soon as it is sent.

    With `host_runs_ahead`, the host queues computation, as on a GPU (see `shardsim.cpu_streams`). The host's own time
    is then hidden behind that computation.
    """

    engine: str  # "DDP" or "FSDP"
    whose: str = "torch"
    overlap: bool = True
    bucket_bytes: int = 0
    backward_prefetch: bool = True
    host_runs_ahead: bool = True
    replicas: int = 1


def step_times(variants: tuple[Variant, ...], forward_s: float, backward_s: float, rounds: int) -> list[list[float]]:
    """Return seconds of each variant's steps, without the first two. The variants take turns."""
    steps = [build(variant, forward_s, backward_s) for variant in variants]
    times = [[time_step(step) for step in steps] for _ in range(2 + rounds)]
    return [list(of_one) for of_one in zip(*times[2:], strict=True)]


def build(variant: Variant, forward_s: float, backward_s: float) -> Callable[[], None]:
    model = _model()
    for block in model.blocks:
        sleep_in(block, forward_s, backward_s)
    module = (_ddp if variant.engine == "DDP" else _fsdp)(variant, model)
    step = partial(_forward_and_backward, module, local_batch(0))
    if variant.engine == "FSDP" and not variant.overlap:
        step = _on_one_stream(step)
    return cpu_streams.run_ahead()(step) if variant.host_runs_ahead else step


def _ddp(variant: Variant, model: Transformer) -> nn.Module:
    ddp = LIBRARIES[variant.whose].DDP
    module = ddp(model, bucket_cap_mb=variant.bucket_bytes / MIB, gradient_as_bucket_view=True)
    if not variant.overlap:
        module.register_comm_hook(None, _blocking_all_reduce)
    return module


def _blocking_all_reduce(_, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _fsdp(variant: Variant, model: Transformer) -> nn.Module:
    fsdp2(LIBRARIES[variant.whose], model, replicas=variant.replicas)
    if not variant.backward_prefetch:
        for unit in (model, *model.blocks):
            unit.set_modules_to_backward_prefetch([unit])  # prefetches nothing: the unit itself is gathered already
    return model


def _on_one_stream(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step without side streams: FSDP2's messages are queued with computation, which waits for each one."""

    def run() -> None:
        with patch.object(torch.cpu, "stream", lambda _: nullcontext()):
            step()

    return run


def memory(library: str, replicas: int) -> dict[str, int]:
    """Return the bytes that this rank holds after the second step's backward, by category."""
    engine = fsdp2(LIBRARIES[library], _model(), replicas=replicas)
    engine.train_step(*local_batch(0))
    with MemoryTracker(engine.module, engine.optimizer) as tracker:
        _forward_and_backward(engine.module, local_batch(1))
        held = tracker.resident
    return {name: held[name] for name in ("parameters", "gradients", "optimizer_states")}


# ------------------------------------------------------------------------------------------------------- collectives


def collective_times(
    kinds: tuple[str, ...], full_bytes: tuple[int, ...], repeats: int
) -> list[tuple[str, int, list[tuple[float, float]]]]:
    """Return (kind, unsharded bytes, [(issued, returned) for each repeat]). A barrier precedes each repeat."""
    found, gloo = [], dist.new_group(backend="gloo")
    for size in full_bytes:
        calls = _collectives(size)
        for kind in kinds:
            call = calls[kind]
            call()
            spans = []
            for _ in range(repeats):
                dist.barrier(gloo)
                issued_s = time.monotonic()
                call()
                spans.append((issued_s, time.monotonic()))
            found.append((kind, size, spans))
    return found


def _collectives(full_bytes: int) -> dict[str, Callable[[], object]]:
    n = dist.get_world_size()
    whole, other = torch.ones(full_bytes // 4), torch.ones(full_bytes // 4)
    shard = torch.ones(full_bytes // 4 // n)
    return {
        "all_gather": lambda: all_gather(whole, shard),
        "reduce_scatter": lambda: reduce_scatter(shard, whole),
        "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }


# --------------------------------------------------------------------------------------------- compared with plain gloo


def overhead(model: str, pairs: int, micro_batch: int, seq_len: int) -> dict:
    """Compare a real step of torch's DDP on an infinitely fast simulated network with one on gloo."""
    torch.manual_seed(0)
    origin, sizes = Transformer(preset(model)), {"micro_batch": micro_batch, "seq_len": seq_len}
    use_network(Network.parse("infinitely fast", dist.get_world_size()))
    groups = dist.new_group(backend="simulated"), dist.new_group(backend="gloo")
    ddp = partial(TORCH.DDP, gradient_as_bucket_view=True)
    modules = [ddp(copy.deepcopy(origin), process_group=group) for group in groups]
    a, b = (partial(_forward_and_backward, module, local_batch(0, **sizes)) for module in modules)
    return asdict(compare(a, b, pairs=pairs))


ENGINES: dict[str, Callable[[Library, Transformer], Engine]] = {
    "DDP": data_parallel,
    "FSDP1": fsdp1,
    "FSDP2": fsdp2,
    "HSDP": partial(fsdp2, replicas=2),
}


def losses(steps: int) -> dict[str, list[float]]:
    """Return this rank's losses with each engine, ours and torch's, on the launch's network."""
    found = {}
    for name, build_engine in ENGINES.items():
        for library in LIBRARIES.values():
            engine = build_engine(library, _model())
            found[f"{library.name} {name}"] = [engine.train_step(*local_batch(i)).item() for i in range(steps)]
    return found


def _model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(STAND_IN)


def _forward_and_backward(module: nn.Module, tokens_and_targets: tuple[Tensor, Tensor]) -> None:
    module.zero_grad()
    module(*tokens_and_targets).backward()
