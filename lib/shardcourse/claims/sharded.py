"""What a rank holds and sends, of torch's own engines, on four real ranks: a probe of each, all in one launch.

Bytes are told as shares of the model's, so that they stand for a model of any size.
"""

import gc
import warnings
from functools import cache, partial

import torch
from torch.distributed.fsdp import ShardingStrategy, fully_shard

from shardbench.engines import ENGINES, OURS, TORCH, Engine, data_parallel, fsdp1
from shardcourse.claims.claim import Findings
from shardlab import data, launch
from shardlab.measure.probes import Evidence, probe
from shardlab.model import ModelConfig, Transformer

# A block is a seventh of it; the root, that is embedding, last norm and output, an eighth. All divide by 4.
CONFIG = ModelConfig(vocab_size=256, dim=64, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=32)
WORLD_SIZE = 4
PSI = 4 * CONFIG.n_params


def _one_unit(library, model: Transformer) -> Engine:
    """`fully_shard(model)` alone: the whole model is gathered at once."""
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
    """Of rank 0; what is told here is the same on all, as every dimension divides."""
    return launch(_probes, WORLD_SIZE, device="cpu", stream=False)[0]


def _probes() -> dict[str, Evidence]:
    gc.freeze()  # a probe looks at all that Python knows of: what torch made when it was imported is no tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # NO_SHARD is deprecated, which is not the question here
        return {name: _probe(build) for name, build in BUILDS.items()}


def _probe(build) -> Evidence:
    torch.manual_seed(0)
    engine = build(Transformer(CONFIG))
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    tokens, targets = data.batch(0, 0, rank, size, global_batch=size, seq_len=16)
    parts = engine.parts | {"no_sync": None}
    return probe(engine.module, engine.optimizer, lambda: engine.module(tokens, targets), **parts)


# ------------------------------------------------------------------------------------------------------------- checks


def whole_weights(engine: str) -> Findings:
    """What a rank has of the model's weights, as a share of them all."""
    held = evidence()[engine].held
    return {
        "after forward": max(held["forward"]["unsharded"], held["forward"]["parameters"]) / PSI,
        "between steps": held["between"]["parameters"] / PSI,
    }


def held(engine: str, category: str) -> Findings:
    """After backward, as a share of the weights' bytes; of AdamW's states, of their own two copies."""
    copies = 2 if category == "optimizer_states" else 1
    return {"after backward": evidence()[engine].held["backward"][category] / PSI / copies}


def sent(engine: str, beside: str | None = None) -> Findings:
    """Bytes that a rank sends in a step, over the weights', or over those of another engine."""
    of = evidence()[beside].wire_bytes if beside else PSI
    return {"4 ranks": evidence()[engine].wire_bytes / of}


def sends(engine: str, kind: str) -> Findings:
    """How many collectives of a kind a step has, for each of the model's blocks, those of the root left out."""
    return {"4 ranks": sum(s.kind == kind for s in evidence()[engine].sent) // CONFIG.n_layers}


def sends_any(engine: str, kind: str) -> Findings:
    return {"4 ranks": any(s.kind == kind for s in evidence()[engine].sent)}


def frees_after_forward(engine: str) -> Findings:
    """Is every block's gathered memory gone when forward is through?"""
    root = 2 * CONFIG.vocab_size * CONFIG.dim + CONFIG.dim
    return {"4 ranks": evidence()[engine].held["forward"]["unsharded"] <= 4 * root}


def gathered_at_once(engine: str) -> Findings:
    """The most that is unsharded at one moment, as a share of the weights: gathered parameters and whole gradients."""
    return {"4 ranks": evidence()[engine].peak["unsharded"] / PSI}


def hides_behind_backward(engine: str) -> Findings:
    """Are gradients on their way before backward is through?"""
    return {"4 ranks": evidence()[engine].hidden_share > 0}


def shards_everything(engine: str) -> Findings:
    """Does a rank hold a 4th of the parameters, the gradients and the states, and never more of the weights?"""
    e = evidence()[engine]
    held = {name: e.held["backward"][name] / PSI for name in ("parameters", "gradients")}
    held["optimizer states"] = e.held["between"]["optimizer_states"] / 2 / PSI
    held["weights at their most"] = e.peak["unsharded"] / PSI
    return {name: share < 1.1 / WORLD_SIZE for name, share in held.items()}


def gathers_among(engine: str) -> Findings:
    """How many ranks share in an all_gather."""
    return {"2 x 2 ranks": next(s.group_size for s in evidence()[engine].sent if s.kind == "all_gather")}


def sends_more(engine: str, other: str) -> Findings:
    """In bytes, by a hundredth at least."""
    return {"4 ranks": evidence()[engine].wire_bytes > 1.01 * evidence()[other].wire_bytes}


def sends_less(engine: str, other: str) -> Findings:
    return {"4 ranks": evidence()[engine].wire_bytes < 0.99 * evidence()[other].wire_bytes}


def activations(engine: str, beside: str) -> Findings:
    """The most of them at one moment, over those of another engine."""
    return {"4 ranks": evidence()[engine].peak["activations"] / evidence()[beside].peak["activations"]}
