"""Our DDP compared with torch's: step time, peak bytes, bytes on the wire, and the gradients themselves.

A step here is forward and backward. The optimizer step is left out: it is the same on both sides and would only make
them look more alike. Steps of the two take turns, so that the ratio of neighbours is meaningful on a busy machine.
"""

import copy
from dataclasses import asdict
from functools import partial

import torch
import torch.distributed as dist
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shardbench import environment
from shardbench.engines import local_batch
from shardlab import launch, local_device
from shardlab.bucketed_backward import broadcast_tensors
from shardlab.ddp import DDP
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.step_time import compare
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset

CAPS_MB = (None, 1, 0.25)


class NaiveDDP(nn.Module):
    """Average each gradient as soon as backward has made it, and wait for the network every time: what DDP is not.

    Sends: one all_reduce for each parameter, in all 2 (N-1)/N times the gradients' bytes a rank and step.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast_tensors([*module.parameters(), *module.buffers()], None)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._average)

    def _average(self, p: nn.Parameter) -> None:
        p.grad.div_(dist.get_world_size())
        dist.all_reduce(p.grad)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def run(
    model: str = "3M",
    caps_mb: tuple[float | None, ...] = CAPS_MB,
    pairs: int = 40,
    world_size: int = 4,
    micro_batch: int = 2,
    seq_len: int = 64,
) -> dict:
    """Compare our DDP with torch's: a row for each bucket cap, then one for NaiveDDP with a quarter of the pairs.

    Both DDPs use gradient_as_bucket_view. A row holds `time` (a Comparison, ours over torch's), `ours` and `torch` (in
    one step: peak_bytes of the fullest rank, collectives and wire_bytes of rank 0), and `max_abs_difference` of the
    gradients over all parameters and ranks.
    """
    config, before = preset(model), environment()
    shape = {"model": model, "world_size": world_size, "micro_batch": micro_batch, "seq_len": seq_len, "pairs": pairs}
    rows = launch(_rank, world_size, shape, caps_mb)[0]
    figures = {"n_params": config.n_params, "gradient_bytes": 4 * config.n_params}
    return {"benchmark": "ddp", "environment": before, **shape, **figures, "rows": rows}


def show(result: dict) -> None:
    tokens = f"{result['micro_batch']} x {result['seq_len']} tokens"
    title = f"ours / torch's DDP: {result['model']}, {result['world_size']} ranks, {tokens} each"
    caption = f"step: median of {result['pairs']} pairs (and the interval that holds it, 95% sure)"
    table = Table(title=title, caption=caption, box=box.SIMPLE)
    for header in ("bucket_cap_mb", "step", "peak MiB", "collectives", "max diff"):
        table.add_column(header, no_wrap=True)
    for row in result["rows"]:
        t, ours, theirs = row["time"], row["ours"], row["torch"]
        table.add_row(
            f"{row['engine']} {row['bucket_cap_mb'] or ''}",
            f"{t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f})",
            f"{ours['peak_bytes'] / 2**20:.2f} / {theirs['peak_bytes'] / 2**20:.2f}",
            f"{ours['collectives']} / {theirs['collectives']}",
            f"{row['max_abs_difference']:.0e}",
        )
    Console().print(table)


def _rank(shape: dict, caps_mb: tuple[float | None, ...]) -> list[dict]:
    torch.manual_seed(0)
    origin = Transformer(preset(shape["model"])).to(local_device())
    rows = [_row("DDP", partial(DDP, gradient_as_bucket_view=True), origin, cap, shape) for cap in caps_mb]
    few = shape | {"pairs": max(2, shape["pairs"] // 4)}  # enough for a ratio that is clearly above 1
    return [*rows, _row("NaiveDDP", lambda module, bucket_cap_mb: NaiveDDP(module), origin, None, few)]


def _row(engine: str, wrap, origin: nn.Module, cap_mb: float | None, shape: dict) -> dict:
    theirs = DistributedDataParallel(copy.deepcopy(origin), bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)
    ours = wrap(copy.deepcopy(origin), bucket_cap_mb=cap_mb)
    first = _batch(shape, 0)
    steps = [partial(_step, module, *first) for module in (ours, theirs)]
    comparison = compare(*steps, pairs=shape["pairs"])  # must be first: torch rebuilds its buckets after one step
    return {
        "engine": engine,
        "bucket_cap_mb": cap_mb,
        "time": asdict(comparison),
        "ours": _cost(ours, first),
        "torch": _cost(theirs, first),
        "max_abs_difference": max(_difference(ours, theirs, _batch(shape, step)) for step in range(1, 4)),
    }


def _batch(shape: dict, step: int) -> tuple[Tensor, Tensor]:
    return local_batch(step, shape["micro_batch"], shape["seq_len"])


def _step(module: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    module.zero_grad()
    module(tokens, targets).backward()


def _cost(module: nn.Module, tokens_and_targets: tuple[Tensor, Tensor]) -> dict:
    """Return one step's costs: peak bytes of the fullest rank, and this rank's collectives and bytes sent."""
    with MemoryTracker(module) as tracker:
        _step(module, *tokens_and_targets)
    with record_traffic() as traffic:
        _step(module, *tokens_and_targets)
    peaks: list = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, tracker.peak)
    peak = max(peaks, key=lambda memory: memory.peak_bytes)
    return {
        "peak_bytes": peak.peak_bytes,
        "peak_by_category": peak.by_category(),
        "collectives": traffic.count(),
        "wire_bytes": traffic.wire_bytes(dist.get_world_size()),
    }


def _difference(ours: nn.Module, theirs: nn.Module, tokens_and_targets: tuple[Tensor, Tensor]) -> float:
    """Return the largest difference of any gradient element on any rank."""
    for module in (ours, theirs):
        _step(module, *tokens_and_targets)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    largest = torch.stack([(a.grad - b.grad).abs().max() for a, b in pairs]).max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()
