"""A Setup on a real rank: its model on this machine's device, wrapped by its strategy, and one training step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from shardbench.engines import LEARNING_RATE, OURS, TORCH, Engine, Library, data_parallel, fsdp2, zero_1, zero_2
from shardlab import local_device
from shardlab.measure.ledger import Memory
from shardlab.measure.memory import MemoryTracker
from shardlab.model import ModelConfig, Transformer
from shardlab.precision import MasterWeights
from shardlab.recompute import checkpoint_blocks, create_selective_checkpoint_contexts, save_products
from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.trace.program import save_every_second_product

WARM_UP_STEPS = 2  # the first makes the optimizer's states; before the second, DDP rebuilds its buckets
POLICIES = {
    "bf16-mixed": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
    "bf16-mixed-bf16-reduce": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16),
}


def config_of(shape: Shape) -> ModelConfig:
    """Return the shape's ModelConfig. Raises ValueError if it is not a model of the course's kind."""
    names = ("vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "max_seq_len", "tied")
    config = ModelConfig(**{name: getattr(shape, name) for name in names})
    if asdict(Shape.of(shape.name, config)) != asdict(shape):
        raise ValueError(f"{shape.name} is no model of the course's own kind: it can be planned, but not run here")
    return config


def build(setup: Setup, library: Library = TORCH) -> Engine:
    """Build the setup's engine. ZERO_1 and ZERO_2 are always ours, and DDP+ZERO_1 is always torch's."""
    s, torch_of = setup.strategy, {2: torch.bfloat16, 4: torch.float32}
    with local_device():
        model = Transformer(config_of(setup.shape)).to(torch_of[s.bytes.parameters])
    _quantise(model, setup)
    _recompute(model, setup)
    optimizer, kernel = _optimizer(setup), _kernel(setup)
    if s.sharding == "NONE":
        return Engine(model, optimizer(model.parameters()), nullcontext)
    if s.sharding == "DDP":
        return data_parallel(library, model, s.bucket_cap_mb, s.gradient_as_bucket_view, optimizer)
    if s.sharding == "DDP+ZERO_1":
        return zero_1(TORCH, model, s.bucket_cap_mb, s.gradient_as_bucket_view, **kernel)
    if s.sharding in ("ZERO_1", "ZERO_2"):
        return (zero_1 if s.sharding == "ZERO_1" else zero_2)(OURS, model, s.bucket_cap_mb, **kernel)
    options: dict = {"reshard_after_forward": s.sharding == "FULL_SHARD", "replicas": setup.data_ranks // setup.shards}
    options |= {"mp_policy": POLICIES[s.precision]} if s.precision in POLICIES else {}
    return fsdp2(library, model, by_block=s.wrap == "block", optimizer=optimizer, **options)


def _quantise(model: Transformer, setup: Setup) -> None:
    s = setup.strategy
    if s.lora_rank and not s.base_4bit:
        raise ValueError(
            "lora_rank without base_4bit can be planned, but the course's LoRA is QLoRA: set base_4bit=True"
        )
    if s.lora_rank:
        from shardnext.qlora import add_lora  # needs torchao

        add_lora(model, s.lora_rank, targets=lambda name, linear: name.startswith("blocks"))


def _recompute(model: Transformer, setup: Setup) -> None:
    s = setup.strategy
    if s.recompute == "full":
        checkpoint_blocks(model.blocks, s.recompute_every)
    elif s.recompute != "none":
        policy = {"products": lambda: save_products, "selective": save_every_second_product}[s.recompute]
        checkpoint_blocks(model.blocks, context_fn=lambda: create_selective_checkpoint_contexts(policy()))


def _optimizer(setup: Setup) -> Callable[..., Optimizer]:
    s, kernel = setup.strategy, _kernel(setup)
    if s.optimizer == "adamw-8bit":
        from shardnext.qlora import AdamW8bit

        return partial(AdamW8bit, lr=LEARNING_RATE)
    if s.optimizer == "adamw":
        make, options = torch.optim.AdamW, {"lr": LEARNING_RATE, **kernel}
    else:
        momentum = 0.9 if s.optimizer == "momentum" else 0.0
        make, options = torch.optim.SGD, {"lr": LEARNING_RATE, "momentum": momentum, **kernel}
    return partial(MasterWeights, optimizer_class=make, **options) if s.bytes.master else partial(make, **options)


def _kernel(setup: Setup) -> dict[str, bool]:
    return {name: setup.strategy.optimizer_kernel == name for name in ("foreach", "fused")}


# A step, and its memory


def batch(setup: Setup) -> tuple[Tensor, Tensor]:
    """Return random tokens and targets of a micro-batch, each (B, T) int64."""
    s = setup.strategy
    size = (s.micro_batch, s.seq_len)
    drawn = partial(torch.randint, setup.shape.vocab_size, size, device=local_device())
    return drawn(), drawn()


def step(setup: Setup, engine: Engine, tokens: Tensor, targets: Tensor) -> None:
    s = setup.strategy
    for i in range(s.accumulation):
        with engine.no_sync() if s.accumulate_unsharded and i < s.accumulation - 1 else nullcontext():
            with _autocast(setup), _attention(setup):
                loss = engine.module(tokens, targets)
            engine.backward(loss)
            del loss
    engine.step()
    engine.zero_grad()


def _autocast(setup: Setup) -> AbstractContextManager:
    on = setup.strategy.bytes.autocast
    return torch.autocast(local_device().type, torch.bfloat16) if on else nullcontext()


def _attention(setup: Setup) -> AbstractContextManager:
    return sdpa_kernel(SDPBackend.MATH) if setup.strategy.attention == "math" else nullcontext()


def gpu_peak(setup: Setup, engine: Engine, data: tuple[Tensor, Tensor]) -> int:
    """Return `torch.cuda.max_memory_allocated` of a step after the warm-up, which knows nothing of our tracker."""
    for _ in range(WARM_UP_STEPS):
        step(setup, engine, *data)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(setup, engine, *data)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def peak(setup: Setup, library: Library = TORCH) -> Memory:
    """Return the peak memory of a step after the warm-up, when all optimizer states exist. Call it on every rank."""
    engine, data = build(setup, library), batch(setup)
    for _ in range(WARM_UP_STEPS):
        step(setup, engine, *data)
    with MemoryTracker(engine.module, engine.optimizer) as tracker:
        tracker.label("other", *data)
        step(setup, engine, *data)
    dist.barrier()
    return tracker.peak
