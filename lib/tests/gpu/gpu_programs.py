"""Programs for the stand-in GPU: every engine of ours trains the same few steps, so all give one process's losses.

A rank calls `run(names)`. Each program is a function that returns the losses of `STEPS` steps of AdamW on the global
batches of `training`. What differs is the engine, its options, and what happens in between.
"""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import stand_in_gpu
import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from gpu_training import GPU, LR, Recomputed, StepsInBackward, model_on_gpu, train
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW
from training import samples

from shardlab import point_to_point_collectives
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.fsdp import CPUOffloadPolicy, FlatParameter, MixedPrecisionPolicy, fully_shard
from shardlab.grad_norm import clip_grad_norm_
from shardlab.recompute import checkpoint_wrapper
from shardlab.state import full_state_dict
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer
from shardnext.file_offload import FileOffloadOptimizer

MOST_GATHERS = 5  # that the host may queue before the GPU has run them: see `shardlab.rate_limiter`
MICRO_BATCHES = 3


def fsdp(
    *,
    with_=fully_shard,
    mesh=None,
    micro_batches=1,
    recomputes=None,
    prefetches=False,
    breaks=False,
    evaluates=False,
    dtype=torch.float64,
    all_reduces_once=False,
    clips=False,
    on_host=False,
    unshards=False,
    checkpointed_units=False,
    saves=False,
    optimizer=AdamW,
    **options,
) -> list[float]:
    model = model_on_gpu(dtype)
    if mesh:
        options["mesh"] = init_device_mesh("gpu", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :])
    for block in model.blocks:
        if recomputes is not None:
            checkpoint_wrapper(block, **recomputes)
        with_(block, **options)
    if checkpointed_units:
        model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)
    with_(model, **options)
    if prefetches:
        for before, after in pairwise(model.blocks):
            before.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([before])
    if "offload_policy" in options:
        assert {p.to_local().device.type if hasattr(p, "to_local") else p.device.type for p in model.parameters()} == {
            "cpu"
        }
    optimizer = optimizer(model.parameters(), lr=LR)
    stand_in_gpu.gpu.sanitizer.gathers_ahead = MOST_GATHERS if with_ is fully_shard and not unshards else None

    def unsynced(last: bool):
        if micro_batches > 1:
            model.set_requires_all_reduce(last) if all_reduces_once else model.set_requires_gradient_sync(last)
        return nullcontext()

    if evaluates:
        with torch.no_grad():
            model(*(t.to(GPU) for t in samples(0, dist.get_rank(), dist.get_world_size())))
    middle = model.blocks[1].up if breaks else None
    clip = getattr(optimizer, "clip_grad_norm_", partial(clip_grad_norm_, list(model.parameters())))
    if unshards:
        optimizer.register_step_post_hook(lambda *_: [m.unshard(async_op=True) for m in (*model.blocks, model)])
    if saves:
        optimizer.register_step_post_hook(lambda *_: full_state_dict(model))
    return train(
        model,
        optimizer,
        micro_batches=micro_batches,
        unsynced=unsynced,
        breaks=middle,
        before_step=partial(clip, 1e9) if clips else lambda: None,
        on_host=on_host,
    )


def ddp(*, with_=DDP, micro_batches=1, breaks=False, offloads=False, **options) -> list[float]:
    module = model_on_gpu()
    model = with_(module, bucket_cap_mb=0.005, **options)
    optimizer = (CPUOffloadOptimizer if offloads else AdamW)(module.parameters(), lr=LR)
    unsynced = _no_sync(model, micro_batches)
    return train(
        model, optimizer, micro_batches=micro_batches, unsynced=unsynced, breaks=breaks and module.blocks[1].up or None
    )


def _no_sync(model, micro_batches: int) -> Callable:
    return lambda last: nullcontext() if last or micro_batches == 1 else model.no_sync()


def zero1(*, micro_batches=1) -> list[float]:
    model = model_on_gpu()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=LR, bucket_cap_mb=0.005)
    return train(model, optimizer, micro_batches=micro_batches, before_step=partial(optimizer.clip_grad_norm_, 1e9))


def zero2(*, micro_batches=1, breaks=False) -> list[float]:
    module = model_on_gpu()
    optimizer = ZeroRedundancyOptimizer(module.parameters(), AdamW, lr=LR, bucket_cap_mb=0.005)
    model = ShardedDataParallel(module, optimizer)
    unsynced, middle = _no_sync(model, micro_batches), module.blocks[1].up if breaks else None
    return train(model, optimizer, micro_batches=micro_batches, unsynced=unsynced, breaks=middle)


def ring() -> list[float]:
    """Average gradients by the reference collectives, after backward."""
    model = model_on_gpu()

    def average() -> None:
        for p in model.parameters():
            point_to_point_collectives.all_reduce(p.grad, dist.ReduceOp.AVG)

    return train(model, AdamW(model.parameters(), lr=LR), before_step=average)


def _in_a_file(params, lr: float) -> FileOffloadOptimizer:
    return FileOffloadOptimizer(params, AdamW, tempfile.gettempdir(), buffer_bytes=4096, lr=lr)


FLAT = {"layout": FlatParameter}
PROGRAMS: dict[str, Callable[[], list[float]]] = {  # on 2 ranks
    "fsdp": fsdp,
    "fsdp, prefetch": partial(fsdp, prefetches=True),
    "fsdp, accumulation": partial(fsdp, micro_batches=MICRO_BATCHES),
    "fsdp, recomputation": partial(fsdp, recomputes={}),
    "fsdp, reentrant recomputation": partial(fsdp, recomputes={"checkpoint_impl": CheckpointImpl.REENTRANT}),
    "fsdp, checkpointed units": partial(fsdp, checkpointed_units=True),
    "fsdp, optimizer in backward": partial(fsdp, optimizer=StepsInBackward),
    "fsdp, whole states": partial(fsdp, saves=True),
    "fsdp, backward breaks off": partial(fsdp, breaks=True),
    "fsdp, evaluation first": partial(fsdp, evaluates=True),
    "fsdp, clipping": partial(fsdp, clips=True),
    "fsdp, inputs on the host": partial(fsdp, on_host=True),
    "fsdp, unshard by hand": partial(fsdp, unshards=True),
    "fsdp, bf16": partial(fsdp, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), dtype=torch.float32),
    "fsdp, CPU offload": partial(fsdp, offload_policy=CPUOffloadPolicy()),
    "fsdp, host optimizer": partial(fsdp, optimizer=CPUOffloadOptimizer),
    "fsdp, host optimizer, many backwards": partial(
        fsdp, optimizer=CPUOffloadOptimizer, micro_batches=MICRO_BATCHES, all_reduces_once=True
    ),
    "fsdp, replicas": partial(fsdp, mesh=(2, 1)),
    "fsdp, replicas, one all_reduce": partial(fsdp, mesh=(2, 1), micro_batches=MICRO_BATCHES, all_reduces_once=True),
    "fsdp, host optimizer, clipping": partial(fsdp, optimizer=CPUOffloadOptimizer, clips=True),
    "fsdp, file optimizer": partial(fsdp, optimizer=_in_a_file),
    "flat": partial(fsdp, **FLAT),
    "flat, prefetch": partial(fsdp, **FLAT, prefetches=True),
    "flat, accumulation": partial(fsdp, **FLAT, micro_batches=MICRO_BATCHES),
    "flat, recomputation": partial(fsdp, **FLAT, recomputes={}),
    "flat, checkpointed units": partial(fsdp, **FLAT, checkpointed_units=True),
    "flat, optimizer in backward": partial(fsdp, **FLAT, optimizer=StepsInBackward),
    "flat, whole states": partial(fsdp, **FLAT, saves=True),
    "flat, backward breaks off": partial(fsdp, **FLAT, breaks=True),
    "flat, evaluation first": partial(fsdp, **FLAT, evaluates=True),
    "flat, CPU offload": partial(fsdp, **FLAT, offload_policy=CPUOffloadPolicy()),
    "flat, zero-2": partial(fsdp, **FLAT, reshard_after_forward=False),
    "ddp": ddp,
    "ddp, views": partial(ddp, gradient_as_bucket_view=True),
    "ddp, accumulation": partial(ddp, micro_batches=MICRO_BATCHES),
    "ddp, unused parameters": partial(ddp, find_unused_parameters=True),
    "ddp, backward breaks off": partial(ddp, breaks=True),
    "ddp, host optimizer": partial(ddp, offloads=True),
    "zero1": zero1,
    "zero1, accumulation": partial(zero1, micro_batches=MICRO_BATCHES),
    "zero2": zero2,
    "zero2, accumulation": partial(zero2, micro_batches=MICRO_BATCHES),
    "zero2, backward breaks off": partial(zero2, breaks=True),
    "ring": ring,
}
HYBRID: dict[str, Callable[[], list[float]]] = {  # on 4 ranks
    "hybrid": partial(fsdp, mesh=(2, 2)),
    "hybrid, accumulation": partial(fsdp, mesh=(2, 2), micro_batches=MICRO_BATCHES),
    "hybrid, one all_reduce": partial(fsdp, mesh=(2, 2), micro_batches=MICRO_BATCHES, all_reduces_once=True),
    "hybrid, recomputation": partial(fsdp, mesh=(2, 2), recomputes={}),
    "hybrid, backward breaks off": partial(fsdp, mesh=(2, 2), breaks=True),
    "hybrid flat": partial(fsdp, mesh=(2, 2), **FLAT),
    "hybrid flat, one all_reduce": partial(
        fsdp, mesh=(2, 2), micro_batches=MICRO_BATCHES, all_reduces_once=True, **FLAT
    ),
}
TORCHS: dict[str, Callable[[], list[float]]] = {  # known to be right on GPUs: the bed must find nothing here
    "torch's fully_shard": partial(fsdp, with_=torch_fsdp.fully_shard),
    "torch's fully_shard, prefetch": partial(fsdp, with_=torch_fsdp.fully_shard, prefetches=True),
    "torch's fully_shard, unshard by hand": partial(fsdp, with_=torch_fsdp.fully_shard, unshards=True),
    "torch's fully_shard, CPU offload": partial(
        fsdp, with_=torch_fsdp.fully_shard, offload_policy=CPUOffloadPolicy(pin_memory=True)
    ),
}
ALL = PROGRAMS | HYBRID | TORCHS


def run(names: list[str], until_reported: bool = False) -> dict[str, tuple[list[float], list[str]]]:
    """On a rank: by program, its losses, and what the sanitizer reported."""
    found = {}
    for name in names:
        before = len(stand_in_gpu.gpu.sanitizer.reports)
        stand_in_gpu.gpu.sanitizer.gathers_ahead = None
        losses = ALL[name]()
        torch.gpu.synchronize()
        reports = list(dict.fromkeys(map(str, stand_in_gpu.gpu.sanitizer.reports[before:])))
        found[name] = losses, reports
        if until_reported and _anywhere(bool(reports)):
            break
    return found


def _anywhere(flag: bool) -> bool:
    flags = torch.tensor(int(flag))
    dist.all_reduce(flags)
    return bool(flags)
