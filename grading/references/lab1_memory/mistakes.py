"""Usual mistakes in predicting memory, each as other weights of the terms of lab 1's formulas."""

from collections.abc import Callable, Iterator

from grading.checks.lab1_memory.programs import Setup
from grading.references.lab1_memory import weighted_memory_formulas
from grading.references.lab1_memory.weighted_memory_formulas import Weights

REPLICAS, SHARDED, DDPS = ("one_rank", "ddp", "zero1"), ("fsdp", "fsdp_bf16"), ("ddp", "zero1")
ALL = REPLICAS + SHARDED
LOSS = (
    "at the loss there is more: three tensors of B T V numbers (log-probabilities, their gradient, and that of the "
    "logits), and what the last norm keeps"
)

# (programs, words, weights that the mistake stands for)
MISTAKES: list[tuple[tuple[str, ...], str, Callable[[Setup], dict]]] = [
    (ALL, "AdamW's two moments are missing: it keeps two fp32 numbers for each parameter", lambda s: {"moments": 0}),
    (
        ("fsdp_bf16",),
        "states are counted with 2 bytes: mixed precision keeps parameters and moments between steps in fp32",
        lambda s: {"parameters": 0.5, "moments": 0.5},
    ),
    (
        ("fsdp_bf16",),
        "parameters between steps are counted with 2 bytes: what the optimizer updates stays in fp32",
        lambda s: {"parameters": 0.5},
    ),
    (("zero1",), "only one of AdamW's two moments is counted, or both with 2 bytes", lambda s: {"moments": 0.5}),
    (
        ("one_rank", *SHARDED),
        "4 bytes of each parameter are missing: the parameters themselves, or one of AdamW's two moments",
        lambda s: {"parameters": 0},
    ),
    (
        ("one_rank", *SHARDED),
        "gradients are counted between steps, where zero_grad has freed them",
        lambda s: {"left_over": 1},
    ),
    (
        ("ddp", "zero1"),
        "4 bytes of each parameter are missing: DDP's buckets are as large as all gradients, and stay between steps",
        lambda s: {"buckets": 0},
    ),
    (
        ("ddp", "zero1"),
        "gradients are counted beside DDP's buckets where they are views of them, or freed by zero_grad",
        lambda s: {"buckets": 2},
    ),
    (
        ("ddp",),
        "without gradient_as_bucket_view gradients live beside the buckets until zero_grad: those are missing",
        lambda s: {"beside": 0},
    ),
    (
        DDPS,
        "gradients are counted beside the buckets: with gradient_as_bucket_view they are the bucket's slices",
        lambda s: {"beside_views": 1},
    ),
    (
        ("ddp",),
        "parameters and moments are divided by the ranks: under DDP each rank has all of them",
        lambda s: {"parameters": 1 / s.N, "moments": 1 / s.N},
    ),
    (
        ("zero1",),
        "ZeRO-1 shares out the moments alone: parameters are whole on each rank, and so are DDP's buckets",
        lambda s: {"parameters": 1 / s.N},
    ),
    (
        ("zero1",),
        "ZeRO-1 shares out the moments alone: parameters and DDP's buckets are whole on each rank",
        lambda s: {"parameters": 1 / s.N, "buckets": 1 / s.N},
    ),
    (("zero1",), "the moments are counted whole: ZeRO-1 shares them out", lambda s: {"moments": _whole_over_share(s)}),
    (
        ("zero1",),
        "the moments are divided evenly, but whole parameters are dealt out, and the fullest rank has more",
        lambda s: {"moments": _whole_over_share(s) / s.N},
    ),
    (SHARDED, "the moments are counted whole: FSDP shards them too", lambda s: {"moments": s.N}),
    (SHARDED, "parameters between steps are counted whole: FSDP keeps a shard", lambda s: {"parameters": s.N}),
    (
        SHARDED,
        "parameters and moments between steps are counted whole: FSDP keeps a shard of both",
        lambda s: {"parameters": s.N, "moments": s.N},
    ),
    # at the peak only
    (
        ("ddp", "zero1", *SHARDED),
        "activations are divided by the ranks: each rank has its own batch, and all activations of it",
        lambda s: {"kept": 1 / s.N, "working": 1 / s.N, "head": 1 / s.N},
    ),
    (
        ("ddp", "zero1", *SHARDED),
        "what blocks keep is divided by the ranks: each rank has its own batch, and all activations of it",
        lambda s: {"kept": 1 / s.N},
    ),
    (ALL, LOSS, lambda s: {"head": 0}),
    (ALL, LOSS, lambda s: {"head": (s.V + 3 * s.D) / (3 * s.V + 3 * s.D)}),
    (ALL, LOSS, lambda s: {"head": (2 * s.V + 3 * s.D) / (3 * s.V + 3 * s.D)}),
    (ALL, "activations are missing", lambda s: {"kept": 0, "working": 0, "head": 0}),
    (
        ALL,
        "one block's activations are counted, where at the loss those of all blocks are there",
        lambda s: {"kept": 1 / s.L},
    ),
    (("one_rank",), "the gradients are missing: behind backward all of them are there", lambda s: {"gradients": 0}),
    (
        SHARDED,
        "nothing is counted as whole: the units at work, and their gradients until they are reduced",
        lambda s: {"root": 0, "blocks": 0, "reducing": 0},
    ),
    (
        SHARDED,
        "no parameters are counted as whole: the root, and the blocks at work and on their way",
        lambda s: {"root": 0, "blocks": 0},
    ),
    (
        SHARDED,
        "the root is not counted as whole, though it is from its forward to the end of backward",
        lambda s: {"root": 0},
    ),
    (SHARDED, "the blocks at work and on their way are not counted as whole", lambda s: {"blocks": 0}),
    (
        SHARDED,
        "whole gradients are missing: the output layer's, `down`'s, and those on their way to be reduced",
        lambda s: {"reducing": 0},
    ),
    (
        SHARDED,
        "all blocks are counted as whole at once: FSDP gathers by blocks, and frees them",
        lambda s: {"every_block_whole": True},
    ),
    (
        ("fsdp_bf16",),
        "whole parameters are counted with 4 bytes: they are gathered in bf16",
        lambda s: {"root": 2, "blocks": 2},
    ),
]


def _whole_over_share(s: Setup) -> float:
    return (
        s.L * weighted_memory_formulas.block_params(s) + weighted_memory_formulas.root_params(s)
    ) / weighted_memory_formulas._fullest_share(s)


def predictions(program: str, of: str, setups: list[Setup], weights: Callable[[Setup], dict]) -> list[float]:
    """Return the predictions of someone who makes this mistake."""
    return [getattr(weighted_memory_formulas, of)(program, s, Weights(**weights(s))) for s in setups]


def candidates(program: str) -> Iterator[tuple[str, Callable[[Setup], dict]]]:
    for programs, words, weights in MISTAKES:
        if program in programs:
            yield words, weights
