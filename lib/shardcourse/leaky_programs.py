"""Six programs that shard a model with FSDP2 but save too little memory, each with its cure, for lesson 6.

Look at the memory of a step before you read on: each function gives away the cause.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from shardlab import local_device
from shardlab.model import Block, Transformer, preset, rotary_angles


def plain(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    loss = model(tokens, targets)
    loss.backward()
    return loss.detach()


@dataclass
class Patient:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: Callable[[nn.Module, Tensor, Tensor], Tensor] = plain  # forward and backward; returns the loss
    sizes: dict[str, int] = field(default_factory=dict)  # micro_batch, seq_len
    keeps: object = None


def _model(cls: type = Transformer, **changes) -> Transformer:
    torch.manual_seed(0)
    return cls(preset("1M", **changes)).to(local_device())


def _shard(model: Transformer) -> Transformer:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), foreach=False)


def healthy(cured: bool = True) -> Patient:
    model = _shard(_model())
    return Patient(model, _adamw(model))


def patient_a(cured: bool = False) -> Patient:
    """Make the optimizer before sharding. It then holds parameters without gradients that the model no longer uses."""
    model = _model()
    early = _adamw(model)
    _shard(model)
    return Patient(model, _adamw(model) if cured else early)


def patient_b(cured: bool = False) -> Patient:
    """Hold the logits of all positions at once, several times. The cure makes them for 64 positions at a time."""
    model = _shard(_model(ChunkedLoss if cured else Transformer, n_layers=2, vocab_size=4096))
    return Patient(model, _adamw(model), sizes={"micro_batch": 2, "seq_len": 128})


def patient_c(cured: bool = False) -> Patient:
    """Make the whole model one unit: all parameters are gathered at once, and all gradients exist at the same time."""
    model = _shard(_model()) if cured else fully_shard(_model())
    return Patient(model, _adamw(model))


def patient_d(cured: bool = False) -> Patient:
    """Accumulate unsharded gradients over micro-batches without synchronisation. The cure reduces after each one."""
    model = _shard(_model())
    return Patient(model, _adamw(model), partial(_four_micro_batches, sync_each=cured))


def patient_e(cured: bool = False) -> Patient:
    """Keep the full state_dict in a variable after it is loaded."""
    full = {name: p.detach().clone() for name, p in _model().named_parameters()}
    model = _model()
    model.load_state_dict(full)
    if cured:
        del full
    model = _shard(model)
    return Patient(model, _adamw(model), keeps=None if cured else full)


def patient_f(cured: bool = False) -> Patient:
    """Keep all activations, which no sharding divides. The cure keeps one tensor a block and recomputes the rest."""
    model = _model()
    if cured:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    model = _shard(model)
    return Patient(model, _adamw(model), sizes={"micro_batch": 2, "seq_len": 256})


PATIENTS = {"A": patient_a, "B": patient_b, "C": patient_c, "D": patient_d, "E": patient_e, "F": patient_f}


def _four_micro_batches(model: nn.Module, tokens: Tensor, targets: Tensor, *, sync_each: bool) -> Tensor:
    for i in range(4):
        model.set_requires_gradient_sync(sync_each or i == 3)
        loss = model(tokens, targets)
        (loss / 4).backward()
    return loss.detach()


class ChunkedLoss(Transformer):
    """A Transformer with the same loss that makes, uses and recomputes logits for `chunk` positions at a time."""

    chunk = 64

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        c = self.config
        cos, sin = rotary_angles(tokens_BT.shape[1], c.head_dim, c.rope_theta, tokens_BT.device)
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, cos, sin)
        hidden, targets = self.norm(x_BTD).flatten(0, 1), targets_BT.flatten()
        pieces = zip(hidden.split(self.chunk), targets.split(self.chunk), strict=True)
        losses = [checkpoint(self._summed, h, t, use_reentrant=False) for h, t in pieces]
        return torch.stack(losses).sum() / targets.numel()

    def _summed(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.output(hidden).float(), targets, reduction="sum")
