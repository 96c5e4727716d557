"""Checks of what a rank holds and sends, by a probe of each engine on four real ranks, all in one launch.

Bytes are given as shares of the model's bytes, so that they apply to a model of any size.
"""

import gc
import warnings
from functools import cache, partial

import torch
from torch.distributed.fsdp import ShardingStrategy, fully_shard

from shardbench.engines import ENGINES, OURS, TORCH, Engine, data_parallel, fsdp1
from shardcourse.claims.claim import Findings
from shardlab import launch, text_batches
from shardlab.model import ModelConfig, Transformer
from shardplan.sharding_evidence import Evidence, probe

# A block is a seventh of the model; the root (embedding, last norm, output) is an eighth. All dimensions divide by 4.
CONFIG = ModelConfig(vocab_size=256, dim=64, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=32)
WORLD_SIZE = 4
PSI = 4 * CONFIG.n_params


def _one_unit(library, model: Transformer) -> Engine:
    """Apply `fully_shard(model)` alone, so that the whole model is gathered at once."""
    fully_shard(model)
    return Engine(model, torch.optim.AdamW(model.parameters()))


BUILDS = {
    "DDP": partial(data_parallel, TORCH, bucket_cap_mb=0.2),
    "ZeRO-1": partial(ENGINES["ZeRO-1"].build, OURS, bucket_cap_mb=0.2),
    "ZeRO-2": partial(ENGINES["ZeRO-2"].build, OURS, bucket_cap_mb=0.2),
    "FULL_SHARD": partial(ENGINES["FSDP2 FULL_SHARD"].build, TORCH),
    "SHARD_GRAD_OP": partial(ENGINES["FSDP2 SHARD_GRAD_OP"].build, TORCH),
    "HYBRID_SHARD": partial(ENGINES["HSDP"].build, TORCH),
    "NO_SHARD": partial(fsdp1, TORCH, strategy=ShardingStrategy.NO_SHARD),
    "one unit": partial(_one_unit, TORCH),
}


@cache
def evidence() -> dict[str, Evidence]:
    """Return rank 0's evidence. It is the same on all ranks, because every dimension divides by 4."""
    return launch(_probes, WORLD_SIZE, device="cpu", stream=False)[0]


def _probes() -> dict[str, Evidence]:
    gc.freeze()  # a probe looks at all Python objects; freeze leaves out those that torch made at import
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # NO_SHARD is deprecated, but that does not matter here
        return {name: _probe(build) for name, build in BUILDS.items()}


def _probe(build) -> Evidence:
    torch.manual_seed(0)
    engine = build(Transformer(CONFIG))
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    tokens, targets = text_batches.batch(0, 0, rank, size, global_batch=size, seq_len=16)
    parts = engine.parts | {"no_sync": None}
    return probe(engine.module, engine.optimizer, lambda: engine.module(tokens, targets), **parts)


# ------------------------------------------------------------------------------------------------------------- checks


def whole_weights(engine: str) -> Findings:
    """Return a rank's share of the model's weights, after forward and between steps."""
    held = evidence()[engine].held
    return {
        "after forward": max(held["forward"]["unsharded"], held["forward"]["parameters"]) / PSI,
        "between steps": held["between"]["parameters"] / PSI,
    }


def held(engine: str, category: str) -> Findings:
    """Return the bytes held after backward, as a share of the weights' bytes (AdamW's states: of twice those)."""
    copies = 2 if category == "optimizer_states" else 1
    return {"after backward": evidence()[engine].held["backward"][category] / PSI / copies}


def sent(engine: str, beside: str | None = None) -> Findings:
    """Return the bytes that a rank sends in a step, over the weights' bytes or over what another engine sends."""
    of = evidence()[beside].wire_bytes if beside else PSI
    return {"4 ranks": evidence()[engine].wire_bytes / of}


def sends(engine: str, kind: str) -> Findings:
    """Return the number of collectives of a kind in a step for each block; the root's are not counted."""
    return {"4 ranks": sum(s.kind == kind for s in evidence()[engine].sent) // CONFIG.n_layers}


def sends_any(engine: str, kind: str) -> Findings:
    return {"4 ranks": any(s.kind == kind for s in evidence()[engine].sent)}


def frees_after_forward(engine: str) -> Findings:
    """Check whether every block's gathered memory is freed when forward ends."""
    root = 2 * CONFIG.vocab_size * CONFIG.dim + CONFIG.dim
    return {"4 ranks": evidence()[engine].held["forward"]["unsharded"] <= 4 * root}


def gathered_at_once(engine: str) -> Findings:
    """Return the peak of unsharded bytes (gathered parameters, whole gradients), as a share of the weights' bytes."""
    return {"4 ranks": evidence()[engine].peak["unsharded"] / PSI}


def hides_behind_backward(engine: str) -> Findings:
    """Check whether some gradients are sent before backward ends."""
    return {"4 ranks": evidence()[engine].hidden_share > 0}


def shards_everything(engine: str) -> Findings:
    """Check whether a rank holds 1/4 of parameters, gradients and states, and never more of the weights (to 10%)."""
    e = evidence()[engine]
    held = {name: e.held["backward"][name] / PSI for name in ("parameters", "gradients")}
    held["optimizer states"] = e.held["between"]["optimizer_states"] / 2 / PSI
    held["weights at the peak"] = e.peak["unsharded"] / PSI
    return {name: share < 1.1 / WORLD_SIZE for name, share in held.items()}


def gathers_among(engine: str) -> Findings:
    """Return the number of ranks that take part in an all_gather."""
    return {"2 x 2 ranks": next(s.group_size for s in evidence()[engine].sent if s.kind == "all_gather")}


def sends_more(engine: str, other: str) -> Findings:
    """Check whether the engine sends over 1% more bytes than the other."""
    return {"4 ranks": evidence()[engine].wire_bytes > 1.01 * evidence()[other].wire_bytes}


def sends_less(engine: str, other: str) -> Findings:
    return {"4 ranks": evidence()[engine].wire_bytes < 0.99 * evidence()[other].wire_bytes}


def activations(engine: str, beside: str) -> Findings:
    """Return the peak of activations divided by another engine's."""
    return {"4 ranks": evidence()[engine].peak["activations"] / evidence()[beside].peak["activations"]}
