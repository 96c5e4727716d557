"""The engines for the benchmarks and the probes' tests: ours and torch's, wrapped by the same lines of code.

The file shows that torch's library and ours are interchangeable.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.nn.parallel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer

from shardlab import ddp, fsdp, local_device, zero
from shardlab.model import Block, Transformer
from shardlab.text_batches import batch

LEARNING_RATE = 1e-3
BUCKET_CAP_MB = 1.0


@dataclass
class Engine:
    """A wrapped model and its optimizer, with the parts of a training step that differ from the usual ones."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    no_sync: Callable[[], AbstractContextManager] | None = None
    backward: Callable[[Tensor], object] = Tensor.backward
    step: Callable[[], object] | None = None
    zero_grad: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.step = self.step or self.optimizer.step
        self.zero_grad = self.zero_grad or self.optimizer.zero_grad

    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = self.module(tokens, targets)
        self.backward(loss)
        self.step()
        self.zero_grad()
        return loss.detach()

    @property
    def parts(self) -> dict[str, Callable]:
        """Return the parts of a step as keyword arguments for `probe`."""
        return {name: getattr(self, name) for name in ("backward", "step", "zero_grad", "no_sync")}


def local_batch(step: int, micro_batch: int = 1, seq_len: int = 8) -> tuple[Tensor, Tensor]:
    """Return this rank's tokens and targets of a step, (micro_batch, seq_len) int64 each, on its device."""
    n = dist.get_world_size()
    return batch(0, step, dist.get_rank(), n, global_batch=micro_batch * n, seq_len=seq_len, device=local_device())


@dataclass(frozen=True)
class Library:
    """A library (torch or ours): its name, and the wrappers that it provides."""

    name: str
    DDP: type[nn.Module]
    fully_shard: Callable


TORCH = Library("torch", torch.nn.parallel.DistributedDataParallel, torch.distributed.fsdp.fully_shard)
OURS = Library("ours", ddp.DDP, fsdp.fully_shard)


def _adamw(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=LEARNING_RATE)


def data_parallel(
    library: Library, model: Transformer, bucket_cap_mb: float = BUCKET_CAP_MB, views: bool = True, optimizer=_adamw
) -> Engine:
    """Build DDP. `optimizer` makes the optimizer of a list of parameters."""
    module = library.DDP(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=views)
    return Engine(module, optimizer(module.parameters()), module.no_sync)


def zero_1(
    library: Library, model: Transformer, bucket_cap_mb: float = BUCKET_CAP_MB, views: bool = True, **kernel: bool
) -> Engine:
    """Build ZeRO-1. torch's optimizer needs DDP to average the gradients; ours averages them itself."""
    if library == OURS:
        return Engine(model, _sharded_adamw(zero.ZeroRedundancyOptimizer, model, bucket_cap_mb=bucket_cap_mb, **kernel))
    sharded = partial(_sharded_adamw, TorchZeroRedundancyOptimizer, **kernel)
    return data_parallel(library, model, bucket_cap_mb, views, lambda _: sharded(model))


def zero_2(library: Library, model: Transformer, bucket_cap_mb: float = BUCKET_CAP_MB, **kernel: bool) -> Engine:
    """Build ZeRO-2. torch has none, so its ZeRO-1 is used instead."""
    if library == TORCH:
        return zero_1(library, model, bucket_cap_mb, **kernel)
    optimizer = _sharded_adamw(zero.ZeroRedundancyOptimizer, model, bucket_cap_mb=bucket_cap_mb, **kernel)
    module = zero.ShardedDataParallel(model, optimizer)
    return Engine(module, optimizer, module.no_sync)


def fsdp2(
    library: Library,
    model: Transformer,
    *,
    reshard_after_forward: bool = True,
    replicas: int = 1,
    by_block: bool = True,
    optimizer=_adamw,
    **options,
) -> Engine:
    """Build FSDP2 with each block, or the whole model, as a unit. With replicas, it uses a mesh of two dimensions."""
    if replicas > 1:
        sizes, names = (replicas, dist.get_world_size() // replicas), ("replicate", "shard")
        options["mesh"] = init_device_mesh(local_device().type, sizes, mesh_dim_names=names)
    for block in model.blocks if by_block else ():
        library.fully_shard(block, reshard_after_forward=reshard_after_forward, **options)
    library.fully_shard(model, reshard_after_forward=None if reshard_after_forward else False, **options)

    @contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    return Engine(model, optimizer(model.parameters()), no_sync)


def fsdp1(library: Library, model: Transformer, strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD) -> Engine:
    """Build torch's FSDP1, or ours with FSDP1's flat layout. With NO_SHARD all ranks are replicas."""
    if library == OURS:
        replicas = dist.get_world_size() if strategy is ShardingStrategy.NO_SHARD else 1
        reshards = strategy is ShardingStrategy.FULL_SHARD
        return fsdp2(library, model, reshard_after_forward=reshards, replicas=replicas, layout=fsdp.FlatParameter)
    policy, device = ModuleWrapPolicy({Block}), local_device()
    module = torch.distributed.fsdp.FullyShardedDataParallel(
        model, sharding_strategy=strategy, auto_wrap_policy=policy, device_id=device
    )
    return Engine(module, _adamw(module.parameters()), module.no_sync)


@dataclass(frozen=True)
class Entry:
    """An engine to build, and the strategy that predicts the cost of its step (see shardplan.formulas.Expected)."""

    build: Callable[..., Engine]  # takes a library and a model
    strategy: str
    replicas: int = 1
    torch_strategy: str | None = None  # if torch's engine has another strategy
    param_dtype: torch.dtype | None = None


_BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
ENGINES = {
    "DDP": Entry(data_parallel, "DDP"),
    "ZeRO-1": Entry(zero_1, "ZERO_1", torch_strategy="DDP+ZERO_1"),
    "ZeRO-2": Entry(zero_2, "ZERO_2", torch_strategy="DDP+ZERO_1"),
    "FSDP2 FULL_SHARD": Entry(fsdp2, "FULL_SHARD"),
    "FSDP2 SHARD_GRAD_OP": Entry(partial(fsdp2, reshard_after_forward=False), "SHARD_GRAD_OP"),
    "FSDP1 FULL_SHARD": Entry(fsdp1, "FULL_SHARD"),
    "FSDP1 SHARD_GRAD_OP": Entry(partial(fsdp1, strategy=ShardingStrategy.SHARD_GRAD_OP), "SHARD_GRAD_OP"),
    "HSDP": Entry(partial(fsdp2, replicas=2), "FULL_SHARD", replicas=2),
    "HSDP ZeRO-2": Entry(partial(fsdp2, replicas=2, reshard_after_forward=False), "SHARD_GRAD_OP", replicas=2),
    "FSDP2 bf16": Entry(partial(fsdp2, mp_policy=_BF16), "FULL_SHARD", param_dtype=torch.bfloat16),
}


def _sharded_adamw(optimizer_class, module: nn.Module, **options) -> torch.optim.Optimizer:
    return optimizer_class(module.parameters(), torch.optim.AdamW, lr=LEARNING_RATE, **options)
