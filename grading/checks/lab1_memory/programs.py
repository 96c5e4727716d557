"""The programs of lab 1's five setups, as the notebook shows them (a test compares the two), and what a step holds."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from shardlab.measure.memory import MemoryTracker
from shardlab.model import ModelConfig, Transformer


@dataclass(frozen=True)
class Setup:
    """A setup in plain numbers, with lesson 1's letters."""

    V: int  # vocabulary
    D: int  # model width
    L: int  # blocks
    H: int  # query heads
    K: int  # key and value heads
    E: int  # width of a head; D = H E
    F: int  # hidden width of the feed-forward part
    N: int  # ranks
    B: int  # sequences of a rank
    T: int  # tokens of a sequence
    views: bool = False  # DDP: gradient_as_bucket_view
    reshard: bool = True  # FSDP: reshard_after_forward


def make_model(s):
    return Transformer(ModelConfig(s.V, s.D, s.L, s.H, s.K, s.F, max_seq_len=s.T))


def one_rank(s):
    model = make_model(s)
    return model, AdamW(model.parameters(), fused=True)


def ddp(s):
    model = DDP(make_model(s), gradient_as_bucket_view=s.views)
    return model, AdamW(model.parameters(), fused=True)


def zero1(s):
    model = DDP(make_model(s), gradient_as_bucket_view=True)
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW, fused=True)


def fsdp(s):
    model = make_model(s)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=s.reshard)
    fully_shard(model)
    return model, AdamW(model.parameters(), fused=True)


def fsdp_bf16(s):
    model, policy = make_model(s), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, AdamW(model.parameters(), fused=True)


def train_step(model, optimizer, tokens, targets):
    loss = model(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def track_step(program, s):
    """Return a tracker of a third step's memory, on a rank."""
    model, optimizer = program(s)
    tokens, targets = torch.randint(s.V, (2, s.B, s.T))
    for _ in range(2):
        train_step(model, optimizer, tokens, targets)
    with MemoryTracker(model, getattr(optimizer, "optim", optimizer)) as tracker:
        tracker.label("other", tokens)
        train_step(model, optimizer, tokens, targets)
    return tracker


def kept_tensors(module: nn.Module, *args) -> list[torch.Tensor]:
    """Return one tensor of each storage that autograd saves for module(*args). Parameters are not counted."""
    kept = {}

    def pack(t):
        kept.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(*args)
    for p in module.parameters():
        kept.pop(p.untyped_storage().data_ptr(), None)
    return list(kept.values())
