"""QLoRA: frozen weights in 4 bits and small trained matrices; and AdamW with states in 8 bits. Both use torchao.

    add_lora(model, rank=8)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = AdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-3)

[Note: what is sharded] For a weight, NF4 stores a 4-bit code per number, an 8-bit scale per block of 64 numbers, and
a factor in the weight's dtype per 256 scales. torchao's NF4Tensor puts all this into one tensor of its own class, which
FSDP2 can gather only if every part divides by the number of ranks. Here codes, scales and factors are ordinary frozen
parameters. So DDP, ZeRO, either layout of FSDP, checkpoints and memory counts can hold them, with any number of ranks.
An NF4Tensor around them is made when they are used.

Needs torchao: pip install "torchao>=0.18,<0.19". Under torch's FSDP2 also PyTorch 2.12, the first that shards integers.
Source: Hu et al. 2021, "LoRA", section 4.1; Dettmers et al. 2023, "QLoRA", section 3; Dettmers et al. 2021, "8-bit
Optimizers via Block-wise Quantization", section 2; torchao.
"""

import logging
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)  # torchao warns about kernels for other machines, torch about torchao's calls
try:
    from torchao import optim
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import NF4Tensor, linear_nf4, to_nf4
except ImportError as error:
    raise ImportError(f'{error}: quantised needs torchao: pip install "torchao>=0.18,<0.19"') from error
finally:
    logging.disable(_disabled)

__all__ = ["AdamW8bit", "LoRALinear", "NF4Weight", "add_lora"]

SHARDED = {
    "quantized_data": "codes",
    "quantized_scalers": "scales",
    "quantization_factor": "factors",
}  # torchao's name: ours


class NF4Weight(nn.Module):
    """A frozen weight of shape (out, in) in NF4; calling it returns a torchao NF4Tensor.

    `codes` (out * in / 2,) uint8, two numbers each; `scales` (out * in / 64,) int8; `factors`: one per 256 scales, in
    the weight's dtype. Buffers: the mean of the scales, and the table of the 16 numbers.

    Raises ValueError if out * in is not a multiple of block_size * scaler_block_size.
    """

    def __init__(self, weight: Tensor, block_size: int = 64, scaler_block_size: int = 256) -> None:
        super().__init__()
        if weight.numel() % (block_size * scaler_block_size):
            raise ValueError(
                f"a weight of {list(weight.shape)} does not divide into {scaler_block_size} blocks of {block_size}: "
                "pass a smaller scaler_block_size, or leave it out by `targets`"
            )
        quantised = to_nf4(weight.detach(), block_size, scaler_block_size)
        inner, self._form = quantised.__tensor_flatten__()
        for theirs in inner:
            t = getattr(quantised, theirs)
            if theirs in SHARDED:
                self.register_parameter(SHARDED[theirs], nn.Parameter(t.flatten(), requires_grad=False))
            else:
                self.register_buffer(theirs, t)

    def forward(self) -> NF4Tensor:
        inner = {theirs: getattr(self, ours) for theirs, ours in SHARDED.items()} | dict(self.named_buffers())
        return NF4Tensor.__tensor_unflatten__(inner, self._form, None, None)


class LoRALinear(nn.Module):
    """x -> x W^T + (alpha / rank) x A^T B^T: W is frozen in NF4; A (rank, in) starts random, B (out, rank) zero.

    A and B are trained. At first it computes what the linear layer does, up to the rounding of W to 4 bits.
    Keeps for backward: the input and W's codes, never W.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, **nf4) -> None:
        super().__init__()
        out_features, in_features = linear.weight.shape
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.weight = NF4Weight(linear.weight, **nf4)
        self.bias = linear.bias
        self.lora_a = nn.Parameter(torch.randn(rank, in_features, **like) / math.sqrt(in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        y = linear_nf4(x, self.weight())
        if self.bias is not None:
            y = y + self.bias
        return y + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


def add_lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float = 16.0,
    targets: Callable[[str, nn.Linear], bool] = lambda name, linear: True,
    **nf4: int,
) -> nn.Module:
    """Freeze the model and replace each nn.Linear that `targets(name, linear)` chooses by a LoRALinear, in place.

    Call it before sharding. Weights that several modules share stay as they are. `nf4`: block_size, scaler_block_size.
    Draws the A matrices from torch's random numbers: seed all ranks alike, or let DDP broadcast.
    """
    model.requires_grad_(False)
    users: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            users[p] = users.get(p, 0) + 1
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full_name = f"{name}.{child_name}".lstrip(".")
            if type(child) is nn.Linear and users[child.weight] == 1 and targets(full_name, child):
                setattr(module, child_name, LoRALinear(child, rank, alpha, **nf4))
    return model


class AdamW8bit(optim.AdamW8bit):
    """torchao's AdamW, with 8-bit states where this rank's shard has 4096 numbers or more and a multiple of 256.

    Other parameters keep float32 states. Without a GPU its step is not compiled: some machines have no compiler.
    Keeps: 2 bytes per number and 8 per 256 numbers, instead of 8 bytes per number; 2 KiB of tables per parameter.
    """

    def step(self, closure=None):
        on_gpu = any(p.is_cuda for group in self.param_groups for p in group["params"])
        with torch.compiler.set_stance("default" if on_gpu else "force_eager"):
            return super().step(closure)
