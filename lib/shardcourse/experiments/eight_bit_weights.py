"""Weights in eight and four bits: the small model of lesson 18, what its loss notices, and what torchao sends.

`rounded` maps a float32 matrix to the float32 matrix that a format of fewer bits makes of it.
"""

import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.func import functional_call

from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

CONFIG = preset("1M", n_layers=2)
Rounding = Callable[[Tensor], Tensor]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # the numbers of four bits, without their sign


def e4m3(x: Tensor) -> Tensor:
    """Round to the numbers of float8_e4m3fn; larger numbers than 448 become 448."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def e2m1(x: Tensor) -> Tensor:
    """Round to the nearest number of four bits; larger numbers than 6 become 6."""
    return x.sign() * E2M1[torch.bucketize(x.abs().contiguous(), (E2M1[1:] + E2M1[:-1]) / 2)]


def power_of_two(x: Tensor) -> Tensor:
    """Round up to a power of two."""
    return x.log2().ceil().exp2()


def e4m3_scale(x: Tensor) -> Tensor:
    """Round the scales of blocks to E4M3, under one scale for the whole tensor. NVFP4 does so."""
    whole = x.max() / 448
    return e4m3(x / whole) * whole


def model(seed: int) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(CONFIG)


def data(seed: int, step: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    return batch(seed, step, rank, ranks, global_batch=8, seq_len=64)


def matrices(model: nn.Module) -> list[str]:
    """Return the names of the weights that travel in eight bits: the matrices of the blocks."""
    return [name for name, p in model.named_parameters() if name.startswith("blocks") and p.ndim == 2]


def sizes(seed: int) -> dict[str, int]:
    """Return how many numbers the blocks' matrices have, their norms, and the rest, which is the root."""
    whole = model(seed)
    of_blocks = sum(p.numel() for p in whole.blocks.parameters())
    eight = sum(whole.get_parameter(name).numel() for name in matrices(whole))
    root = sum(p.numel() for p in whole.parameters()) - of_blocks
    return {"matrices of the blocks": eight, "norms of the blocks": of_blocks - eight, "root": root}


def train(seed: int, steps: int, lr: float, stored: Rounding | None = None) -> tuple[Transformer, list[float]]:
    """Train in float32 in one process and return the model and its losses.

    With `stored` the optimizer has no float32 weights: each step ends with rounded matrices.
    """
    trained, losses = model(seed), []
    optimizer = torch.optim.AdamW(trained.parameters(), lr=lr, foreach=False)
    params = [trained.get_parameter(name) for name in matrices(trained)]
    for step in range(steps):
        loss = trained(*data(seed, step, 0, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if stored:
            with torch.no_grad():
                for p in params:
                    p.copy_(stored(p))
    return trained, losses


def grow_a_row(model: Transformer, factor: float) -> None:
    """Multiply row 7 of each `up` by a power of two, and divide what reads it: the function stays the same."""
    with torch.no_grad():
        for block in model.blocks:
            block.feed_forward.up.weight[7] *= factor
            block.feed_forward.down.weight[:, 7] /= factor


@torch.no_grad()
def rounded_to_zero(model: Transformer, rounded: Rounding) -> tuple[int, int]:
    """Return how many rows of the first block's `up`, and columns of its `down`, become zero."""
    of_block = model.blocks[0].feed_forward
    up, down = rounded(of_block.up.weight), rounded(of_block.down.weight)
    return int((~up.any(dim=1)).sum()), int((~down.any(dim=0)).sum())


@torch.no_grad()
def loss_with(model: Transformer, rounded: Rounding, seed: int) -> float:
    """Return the mean loss on samples that training did not see, if the blocks' matrices are rounded."""
    weights = {name: rounded(model.get_parameter(name)) for name in matrices(model)}
    return sum(functional_call(model, weights, data(seed + 1, s, 0, 1)).item() for s in range(4)) / 4


def each_on_its_rank(function: Callable, cases: dict[str, tuple]) -> dict:
    """Call `function(*case)` for every case, each on one rank, and return this rank's results by name."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {name: function(*case) for i, (name, case) in enumerate(cases.items()) if i % ranks == rank}


def torchao_messages() -> dict[str, list[tuple[str, str, int]]]:
    """Return torchao's messages, (kind, dtype, unsharded bytes), of one step and of the scales made afterwards.

    Without torchao, return {}.

    The unit has a norm, too. Else its gather would be float8, which gloo rejects.
    """
    if not find_spec("torchao"):
        return {}
    logging.disable(logging.WARNING)  # torchao warns about kernels for other machines
    warnings.simplefilter("ignore")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

    linears = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)
    unit = nn.Sequential(nn.RMSNorm(64), *linears)
    convert_to_float8_training(unit, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True))
    fully_shard(unit, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer, found = torch.optim.AdamW(unit.parameters(), foreach=False), {}
    for part in ("a step", "scales made after the step", "the next step"):
        with record_traffic() as traffic:
            if part.startswith("scales"):
                precompute_float8_dynamic_scale_for_fsdp(unit)
            else:
                unit(torch.randn(32, 64, dtype=torch.bfloat16)).float().square().mean().backward()
        if part == "a step":
            optimizer.step()
            optimizer.zero_grad()
        found[part] = [(c.kind, c.dtype, max(c.input_bytes, c.output_bytes)) for c in traffic.collectives]
    logging.disable(logging.NOTSET)
    return found
