"""Check that a setup can be traced, that is, that the course's model and the engines of `program` support it."""

from shardplan.planned_job import Setup
from shardplan.strategy import Strategy

# field -> its one value that can be traced
ONLY_SHAPES = {"gated": True, "norm": "rms", "qkv_bias": False, "linear_bias": False, "qk_norm": False}
ONLY_SHAPES |= {"experts": None, "latent": None, "sinks": False, "post_norms": 0, "window": 0}
ONLY_STRATEGIES = {
    "offload": "none",
    "offload_activations": False,
    "products": "compute",
    "gather": "compute",
    "lora_rank": 0,
    "base_4bit": False,
    "compile": False,
    "cross_entropy": "whole",
    "norm_kernel": "composed",
    "tensor": 1,
    "pipeline": 1,
    "context": 1,
}


def check_traceable(setup: Setup) -> None:
    """Raise ValueError that names a field which can't be traced."""
    shape = setup.shape
    _only(shape, ONLY_SHAPES)
    check_engines(setup.strategy)
    if shape.learned_positions or shape.q_dim != shape.dim:
        field = "learned_positions" if shape.learned_positions else "head_dim"
        raise ValueError(f"{field}={getattr(shape, field)} can't be traced: the course's model has no such thing")


def check_engines(s: Strategy) -> None:
    """Raise ValueError that names a field of the strategy which can't be traced, with any model."""
    _only(s, ONLY_STRATEGIES)
    if s.recompute == "pointwise":
        raise ValueError("recompute='pointwise' can't be traced: torch's checkpointing keeps a block's products only")
    if s.optimizer in ("adamw-8bit", "muon"):
        raise ValueError(f"optimizer={s.optimizer!r} can't be traced, only 'adamw', 'momentum' and 'sgd'")
    if s.precision == "bf16-master-fp32-gradients":
        why = "torch's gradients have their parameter's dtype"
        raise ValueError(f"precision={s.precision!r} can't be traced, but 'bf16-master' can: {why}")
    if s.bytes.master and s.sharding in ("DDP+ZERO_1", "ZERO_1", "ZERO_2"):
        raise ValueError(
            f"precision={s.precision!r} can't be traced with {s.sharding}: MasterWeights are whole; trace 'bf16'"
        )
    if not is_fsdp(s) and s.precision.startswith("bf16-mixed"):
        raise ValueError(f"precision={s.precision!r} is FSDP's; with sharding={s.sharding!r} trace 'bf16-autocast'")


def _only(holder: object, values: dict) -> None:
    for name, value in values.items():
        if getattr(holder, name) != value:
            raise ValueError(f"{name}={getattr(holder, name)!r} can't be traced, only {value!r}: plan it instead")


def is_fsdp(s: Strategy) -> bool:
    return s.sharding in ("FULL_SHARD", "SHARD_GRAD_OP")
