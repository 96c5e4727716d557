"""All our sharding engines compared with torch's: step time, losses, bytes held, peak bytes and bytes on the wire.

A step here is forward, backward, the optimizer's step and zero_grad. Each engine needs three launches. In two of them
ours and torch's run alone under the probe, so that their memory is separate. In one they take turns, for the time.
`shardplan.formulas` has the formulas. If DeepSpeed is installed, its stages are compared with ours as well.
"""

from dataclasses import asdict
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from shardbench import backend, environment
from shardbench.deepspeed_engine import deepspeed, installed
from shardbench.engines import BUCKET_CAP_MB, ENGINES, OURS, TORCH, Engine, Entry, local_batch
from shardbench.parallel_table import show as show
from shardbench.visible_waits import show_waits
from shardlab import launch, local_device
from shardlab.measure.step_time import compare
from shardlab.model import Transformer, preset
from shardplan.compare_formulas import failures
from shardplan.formulas import Expected, units_of
from shardplan.memory.step import TOKEN_BYTES
from shardplan.sharding_evidence import Evidence, probe

LOSS_STEPS = 5
STATES = ("parameters", "gradients", "optimizer_states")
FORMULAS = (*STATES, "wire_bytes", "peak_of_states")
STAGES = {  # DeepSpeed's stage: our engine to compare it with, stage number, offload
    "stage 0": ("DDP", 0, False),
    "stage 1": ("ZeRO-1", 1, False),
    "stage 2": ("ZeRO-2", 2, False),
    "stage 2 offload": ("ZeRO-2", 2, True),
    "stage 3": ("FSDP2 FULL_SHARD", 3, False),
}


def run(
    model: str = "3M",
    engines: tuple[str, ...] = tuple(ENGINES),
    stages: tuple[str, ...] = tuple(STAGES),
    pairs: int = 20,
    world_size: int = 4,
    micro_batch: int = 2,
    seq_len: int = 64,
    device: str | None = None,
) -> dict:
    """Return a row for each engine (see ENGINES) and for each of DeepSpeed's `stages` (None if it is not installed).

    A row holds `time` (a Comparison, ours over theirs), `max_loss_difference` over the first steps from equal weights,
    and `ours` and `theirs` as in `step_costs`. An engine's row also has `formula`. Hybrid engines need an even world
    size. `backend` compares the collectives themselves, on as many elements as the model has.
    """
    shape = {"model": model, "world_size": world_size, "micro_batch": micro_batch, "seq_len": seq_len, "pairs": pairs}
    shape["device"] = device  # of the ranks; None: launch's default
    before = environment()
    rows = [_row(name, shape) for name in engines if world_size % ENGINES[name].replicas == 0]
    beside = [_deepspeed_row(name, shape) for name in stages] if installed() else None
    raw = backend.run(preset(model).n_params, world_size, pairs, device)
    return {"benchmark": "parallel", "environment": before, **shape, "rows": rows, "deepspeed": beside, "backend": raw}


def _row(name: str, shape: dict) -> dict:
    entry = ENGINES[name]
    ours, theirs = partial(entry.build, OURS), partial(entry.build, TORCH)
    formulas = {
        "ours": _expected(entry, entry.strategy, shape),
        "theirs": _expected(entry, entry.torch_strategy or entry.strategy, shape),
    }
    return {
        "engine": name,
        **side_by_side(ours, theirs, shape),
        "ours": step_costs(ours, shape, formulas["ours"]),
        "theirs": step_costs(theirs, shape, formulas["theirs"]),
        "formula": {who: {name: getattr(x, name) for name in FORMULAS} for who, x in formulas.items()},
    }


def _deepspeed_row(name: str, shape: dict) -> dict:
    beside, stage, offload = STAGES[name]
    ours = partial(ENGINES[beside].build, OURS)
    theirs = partial(deepspeed, stage=stage, offload=offload, micro_batch=shape["micro_batch"])
    return {
        "engine": f"DeepSpeed {name}",
        "beside": beside,
        **side_by_side(ours, theirs, shape),
        "ours": step_costs(ours, shape),
        "theirs": step_costs(theirs, shape),
    }


def _expected(entry: Entry, strategy: str, shape: dict) -> Expected:
    with torch.device("meta"):
        model = Transformer(preset(shape["model"]))
    size = shape["world_size"]
    options = {"param_dtype": entry.param_dtype, "bucket_bytes": int(BUCKET_CAP_MB * 2**20)}
    batch_bytes = 2 * TOKEN_BYTES * shape["micro_batch"] * shape["seq_len"]
    options["spare_bytes"] = Expected.spare_bytes + batch_bytes  # tokens and targets, which outlive the step here
    return Expected(strategy, units_of(model, model.blocks), size, size // entry.replicas, **options)


# Launches


def step_costs(build, shape: dict, expected: Expected | None = None) -> dict:
    """Return the costs of one step: bytes held and peak bytes, each of the fullest rank, and bytes that rank 0 sends.

    `held` counts gradients after backward, all else between steps. `peak_of_states` is the peak without activations and
    temporaries. `broken` names the failed checks of `failures`.
    """
    ranks: list[Evidence] = launch(partial(_probe, build, shape), shape["world_size"], device=shape["device"])
    most = max(ranks, key=lambda e: e.peak["total"])
    return {
        "held": {name: max(e.held[_WHEN[name]][name] for e in ranks) for name in STATES},
        "held_bytes": max(sum(e.held["between"].values()) for e in ranks),
        "peak_bytes": most.peak["total"],
        "peak_of_states": max(e.peak["states"] for e in ranks),
        "collectives": len(ranks[0].sent),
        "wire_bytes": ranks[0].wire_bytes,
        "broken": sorted({name for e in ranks for name in failures(e, expected)}) if expected else None,
    }


_WHEN = {"parameters": "between", "gradients": "backward", "optimizer_states": "between"}


def side_by_side(ours, theirs, shape: dict) -> dict:
    return launch(partial(_compare, ours, theirs, shape), shape["world_size"], device=shape["device"])[0]


# On a rank


def _probe(build, shape: dict) -> Evidence:
    engine = _engine(build, shape)
    tokens, targets = _batch(shape, 0)
    return probe(engine.module, engine.optimizer, lambda: engine.module(tokens, targets), **engine.parts)


def _compare(ours, theirs, shape: dict) -> dict:
    a, b = _engine(ours, shape), _engine(theirs, shape)
    losses = [[_mean(e.train_step(*_batch(shape, step))) for step in range(LOSS_STEPS)] for e in (a, b)]
    first = _batch(shape, 0)
    comparison = compare(partial(a.train_step, *first), partial(b.train_step, *first), pairs=shape["pairs"])
    return {
        "time": asdict(comparison),
        "max_loss_difference": max(abs(x - y) for x, y in zip(*losses, strict=True)),
        "losses": losses[0],
    }


def _engine(build, shape: dict) -> Engine:
    show_waits()
    torch.manual_seed(0)
    return build(Transformer(preset(shape["model"])).to(local_device()))


def _batch(shape: dict, step: int) -> tuple[Tensor, Tensor]:
    return local_batch(step, shape["micro_batch"], shape["seq_len"])


def _mean(loss: Tensor) -> float:
    mean = loss.double()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()
