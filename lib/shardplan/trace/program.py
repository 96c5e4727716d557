"""The training program that a setup describes: the course's model under PyTorch's own engines, ready to train.

The same program runs on real and on fake tensors and ranks: the tests run both. ZERO_1 and ZERO_2 are the course's own
engines, because PyTorch does not have them in this form.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shardlab.model import ModelConfig, Transformer
from shardlab.precision.master_weights_and_stochastic_rounding import MasterWeights
from shardlab.recompute import checkpoint_blocks, create_selective_checkpoint_contexts, save_products
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardplan.trace.no_hardware import is_fake, without_hardware
from shardplan.trace.traceable import check_traceable, is_fsdp

LEARNING_RATE = 1e-3


@dataclass
class Program:
    """A wrapped model, its optimizer, and one training step: all micro-batches, the update, zero_grad."""

    model: nn.Module  # inside `module`; under FSDP the same object
    module: nn.Module
    optimizer: Optimizer
    train_step: Callable[..., None]  # takes the model's inputs, the same for every micro-batch


def config_of(shape: Shape, n_layers: int | None = None) -> ModelConfig:
    widths = shape.n_heads, shape.n_kv_heads, shape.hidden_dim
    sizes = shape.vocab_size, shape.dim, n_layers or shape.n_layers, *widths, shape.max_seq_len
    return ModelConfig(*sizes, tied=shape.tied)


def build(setup: Setup, device: str, n_layers: int | None = None) -> Program:
    """Build the program inside a process group of `setup.world_size` ranks. Raises ValueError if it can't be traced."""
    check_traceable(setup)
    s = setup.strategy
    with torch.device(device), parameters_in(s):
        model = Transformer(config_of(setup.shape, n_layers))
    return ready_to_train(model, model.blocks, setup, device)


def ready_to_train(model: nn.Module, blocks: Sequence[nn.Module], setup: Setup, device: str) -> Program:
    """Recompute `blocks`, shard the model, in FSDP with a unit for each block, and add an optimizer and a step.

    The model must return its loss.
    """
    s = setup.strategy
    _recompute(blocks, s)
    module, optimizer = _shard(model, blocks, setup, device)
    return Program(model, module, optimizer, partial(_train_step, module, optimizer, s, device))


@contextmanager
def parameters_in(s: Strategy) -> Iterator[None]:
    """Make new parameters in their dtype, as `model.to(dtype)` would; `to` can't swap fake parameters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPES[s.bytes.parameters])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def batch(setup: Setup, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one micro-batch, int64."""
    size = setup.strategy.micro_batch, setup.strategy.seq_len
    zeros = partial(torch.zeros, size, dtype=torch.int64, device=device)
    return zeros(), zeros()


def _train_step(module: nn.Module, optimizer: Optimizer, s: Strategy, device: str, *inputs: Tensor) -> None:
    for i in range(1, s.accumulation + 1):
        unsharded = s.accumulate_unsharded and i < s.accumulation
        with _no_sync(module) if unsharded else nullcontext():
            with _as_chosen(s, device):
                loss = module(*inputs)
            loss.backward()
            del loss
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def _as_chosen(s: Strategy, device: str) -> Iterator[None]:
    """Set autocast and attention's kernel for a forward."""
    autocast = torch.autocast(device, torch.bfloat16) if s.bytes.autocast else nullcontext()
    with autocast, sdpa_kernel(SDPBackend.MATH) if s.attention == "math" else nullcontext():
        yield


@contextmanager
def _no_sync(module: nn.Module) -> Iterator[None]:
    """Keep whole gradients on the rank without reducing them. ZeRO 1 always does, until the optimizer steps."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)
    else:
        with getattr(module, "no_sync", nullcontext)():
            yield


def _recompute(blocks: Sequence[nn.Module], s: Strategy) -> None:
    """Checkpoint the blocks. Nothing here draws random numbers, so no generator's state is saved."""
    every = s.recompute_every if s.recompute == "full" else 1
    options = {"every": every, "preserve_rng_state": False}
    if s.recompute == "products":
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(save_products)
    if s.recompute == "selective":
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(save_every_second_product())
    if s.recompute != "none":
        checkpoint_blocks(blocks, **options)


def save_every_second_product() -> Callable:
    """Return a policy that saves a region's first, third, ... product, and attention's result. Source: torchtitan."""
    products = count(1)

    def policy(ctx, op, *args, **kwargs) -> bool:
        return next(products) % 2 == 1 if op is torch.ops.aten.mm.default else "attention" in op.name()

    return policy


# Sharding, and the optimizer that goes with it


def _shard(model: nn.Module, blocks: Sequence[nn.Module], setup: Setup, device: str) -> tuple[nn.Module, Optimizer]:
    s = setup.strategy
    if is_fsdp(s):
        return _fully_shard(model, blocks, setup, device), _optimizer(model, s)
    if s.sharding == "NONE":
        return model, _optimizer(model, s)
    if s.sharding.startswith("DDP"):
        options = {"bucket_cap_mb": s.bucket_cap_mb, "gradient_as_bucket_view": s.gradient_as_bucket_view}
        ddp = DistributedDataParallel(model, init_sync=False, **options)  # fake ranks have no weights to compare
        ddp = without_hardware(ddp) if is_fake() else ddp
        return ddp, _optimizer(ddp, s, TorchZeroRedundancyOptimizer if s.sharding == "DDP+ZERO_1" else None)
    optimizer = _optimizer(model, s, partial(ZeroRedundancyOptimizer, bucket_cap_mb=s.bucket_cap_mb))
    return (ShardedDataParallel(model, optimizer) if s.sharding == "ZERO_2" else model), optimizer


def _fully_shard(model: nn.Module, blocks: Sequence[nn.Module], setup: Setup, device: str) -> nn.Module:
    s = setup.strategy
    options = {"mesh": _mesh(setup, device), "mp_policy": _mp_policy(s)}
    if s.wrap == "block":
        for block in blocks:
            fully_shard(block, reshard_after_forward=s.sharding == "FULL_SHARD", **options)
    return fully_shard(model, reshard_after_forward=None if s.sharding == "FULL_SHARD" else False, **options)


def _mesh(setup: Setup, device: str) -> DeviceMesh:
    replicas = dist.get_world_size() // setup.shards
    sizes, names = ((replicas, setup.shards), ("replicate", "shard")) if replicas > 1 else ((setup.shards,), ("shard",))
    with unset_fake_temporarily():  # a mesh reads a tensor of ranks
        return init_device_mesh(device, sizes, mesh_dim_names=names)


def _mp_policy(s: Strategy) -> MixedPrecisionPolicy:
    if s.bytes.autocast or s.bytes.compute == s.bytes.parameters:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(_DTYPES[s.bytes.compute], _DTYPES[s.bytes.reduce])


_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_CLASSES = {
    "adamw": (torch.optim.AdamW, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd": (torch.optim.SGD, {}),
}


def _optimizer(module: nn.Module, s: Strategy, sharded: Callable | None = None) -> Optimizer:
    """Make the optimizer. `sharded(params, optimizer_class, **options)` makes one that shards its states over ranks."""
    optimizer_class, options = _CLASSES[s.optimizer]
    kernel = {"foreach": s.optimizer_kernel == "foreach", "fused": s.optimizer_kernel == "fused"}
    options = {"lr": LEARNING_RATE, **options, **kernel}
    if s.bytes.master:
        return MasterWeights(module.parameters(), optimizer_class, **options)
    if sharded:
        return sharded(module.parameters(), optimizer_class, **options)
    return optimizer_class(module.parameters(), **options)
