"""Six programs that shard a model with FSDP2 but save too little memory, each with its fix, for lesson 6b.

Look at the memory of a step before you read on: each function gives away the cause.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from shardcourse.experiments.measured_step import MeasuredStep, forward_backward, measure_step
from shardlab import local_device
from shardlab.model import Block, Transformer, preset, rotary_angles


@dataclass
class Program:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: Callable[[nn.Module, Tensor, Tensor], Tensor] = forward_backward  # returns the loss
    sizes: dict[str, int] = field(default_factory=dict)  # micro_batch, seq_len
    keeps: object = None  # what the program still holds during the step

    def measure(self) -> MeasuredStep:
        return measure_step(self.model, self.optimizer, self.train, every_tensor=True, **self.sizes)


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


def sound_program(fixed: bool = True) -> Program:
    """Shard each block, then the model, then make the optimizer: the program to compare with."""
    model = _shard(_model())
    return Program(model, _adamw(model))


def program_a(fixed: bool = False) -> Program:
    """Make the optimizer before sharding. It then holds parameters without gradients that the model no longer uses."""
    model = _model()
    early = _adamw(model)
    _shard(model)
    return Program(model, _adamw(model) if fixed else early)


def program_b(fixed: bool = False) -> Program:
    """Hold the logits of all positions at once, several times. The fix makes them for 64 positions at a time."""
    model = _shard(_model(ChunkedLoss if fixed else Transformer, n_layers=2, vocab_size=4096))
    return Program(model, _adamw(model), sizes={"micro_batch": 2, "seq_len": 128})


def program_c(fixed: bool = False) -> Program:
    """Make the whole model one unit: all parameters are gathered at once, and all gradients exist at the same time."""
    model = _shard(_model()) if fixed else fully_shard(_model())
    return Program(model, _adamw(model))


def program_d(fixed: bool = False) -> Program:
    """Accumulate whole gradients over micro-batches without synchronisation. The fix reduces after each one."""
    model = _shard(_model())
    return Program(model, _adamw(model), partial(_four_micro_batches, sync_each=fixed))


def program_e(fixed: bool = False) -> Program:
    """Keep the full state_dict in a variable after it is loaded."""
    full = {name: p.detach().clone() for name, p in _model().named_parameters()}
    model = _model()
    model.load_state_dict(full)
    if fixed:
        del full
    model = _shard(model)
    return Program(model, _adamw(model), keeps=None if fixed else full)


def program_f(fixed: bool = False) -> Program:
    """Keep all activations, which FSDP does not shard. The fix keeps one tensor a block and recomputes the rest."""
    model = _model()
    if fixed:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    model = _shard(model)
    return Program(model, _adamw(model), sizes={"micro_batch": 2, "seq_len": 256})


PROGRAMS = {"A": program_a, "B": program_b, "C": program_c, "D": program_d, "E": program_e, "F": program_f}


def measure_programs() -> dict[tuple[str, bool], MeasuredStep]:
    """Measure the sound program, and each leaky one as it is and fixed: {(name, fixed): step}."""
    gc.freeze()  # tensors from before do not count as "other"
    found = {("sound", False): sound_program().measure()}
    for name, make in PROGRAMS.items():
        for fixed in (False, True):
            gc.collect()
            found[name, fixed] = make(fixed).measure()
    return found


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
