"""A strategy of training: every choice that a plan depends on, each checked as soon as it is made."""

from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral

from shardplan.formulas import STRATEGIES


@dataclass(frozen=True)
class Precision:
    """Bytes an element. `master` is the optimizer's own copy, which it updates; the parameter itself computes."""

    parameters: int  # as held between steps
    compute: int  # as gathered, and as activations are made
    gradients: int  # as held when backward ends
    reduce: int  # on the wire
    master: int = 0
    states: int = 4  # each optimizer state
    autocast: bool = False  # torch.autocast casts at every use; without it parameters are cast once, when gathered


PRECISIONS = {
    "fp32": Precision(4, 4, 4, 4),
    "bf16-mixed": Precision(4, 2, 4, 4),  # FSDP: MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)
    "bf16-mixed-bf16-reduce": Precision(4, 2, 4, 2),
    "bf16-autocast": Precision(4, 2, 4, 4, autocast=True),
    "bf16-master": Precision(2, 2, 2, 2, master=4),  # 16 bytes a parameter with AdamW: the ZeRO paper's
    "bf16-master-fp32-gradients": Precision(2, 2, 4, 4, master=4),  # 18 bytes: Megatron's
    "bf16": Precision(2, 2, 2, 2, states=2),  # nothing in fp32: 8 bytes
}
# name: (states an element, bytes of each state); None: the precision's bytes
OPTIMIZERS = {"adamw": (2, None), "adamw-8bit": (2, 1 + 4 / 256), "momentum": (1, None), "sgd": (0, None)}
RECOMPUTE = ("none", "selective", "products", "full")  # keep all, every second product, all products, nothing
OFFLOAD = ("none", "cpu", "nvme")  # where the optimizer's states and the parameters' shards live between steps
ATTENTION = ("flash", "flash-1", "math")  # FlashAttention-2, its first version; "math" makes the (B, H, T, T) scores
# From all logits at once: by torch's operations in fp32, compiled, or by flash-attention's kernel, which overwrites the
# logits with their gradient. Or from a part of the logits at a time: by torch's operations, or by Liger's kernel
CROSS_ENTROPY = ("whole", "compiled", "in-place", "chunked", "fused")
NORM_KERNELS = ("composed", "fused")  # torch's operations in fp32; or one kernel, which saves its input without a cast
OPTIMIZER_KERNELS = ("foreach", "fused", "forloop")
WRAP = ("block", "whole")


@dataclass(frozen=True)
class Strategy:
    """Choices for a training. Raises ValueError that names the field and the nearest valid value."""

    sharding: str = "FULL_SHARD"  # one of formulas.STRATEGIES, or "NONE"
    shard_size: int | None = None  # hybrid: number of ranks that share one copy of the model; all by default
    precision: str = "bf16-mixed"
    recompute: str = "none"
    recompute_every: int = 1  # "full": one of so many blocks is recomputed
    offload: str = "none"
    optimizer: str = "adamw"
    optimizer_kernel: str = "foreach"  # torch's default on a GPU; "forloop" on a CPU
    lora_rank: int = 0  # 0: all parameters are trained
    base_4bit: bool = False  # QLoRA: the frozen weights in NF4
    micro_batch: int = 1  # sequences a rank computes at a time
    seq_len: int = 2048
    accumulation: int = 1  # micro-batches a step
    accumulate_unsharded: bool = False  # no_sync: gradients are reduced once a step, and are whole until then
    wrap: str = "block"  # FSDP's units: each block, or "whole": the model is one unit
    compile: bool = False
    attention: str = "flash"
    cross_entropy: str = "whole"
    cross_entropy_chunks: int = 8
    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False  # of DDP
    tensor: int = 1  # degrees of the parallelisms beyond data
    pipeline: int = 1
    context: int = 1
    virtual_stages: int = 1  # interleaved pipeline: number of pieces of the model a rank has, used in turns
    sequence_parallel: bool = True  # with tensor > 1: norms and residuals are split too
    gather_again: bool = False  # tensor > 1: keep a share of each product's input, as Megatron; DTensor keeps it whole
    norm_kernel: str = "composed"

    def __post_init__(self) -> None:
        for name, values in CHOICES.items():
            one_of(name, getattr(self, name), values)
        for name in ("shard_size", "lora_rank", *POSITIVE):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise ValueError(f"{name}={value!r}, but it must be a whole number")
            if name in POSITIVE and value < 1:
                raise ValueError(f"{name}={value}, but it must be at least 1")

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def sharded(self) -> tuple[bool, bool, bool]:
        """Three flags: are parameters, gradients, optimizer states sharded? With sharding="NONE" nothing is."""
        return STRATEGIES.get(self.sharding, (False, False, False))

    def recomputes(self, block: int) -> bool:
        """Tell whether this block (from 1) is recomputed. "full": every `recompute_every`-th; else all or none."""
        every = self.recompute_every if self.recompute == "full" else 1
        return self.recompute != "none" and block % every == 0


CHOICES = {
    "sharding": ("NONE", *STRATEGIES),  # NONE: one GPU, and nothing wrapped
    "precision": tuple(PRECISIONS),
    "optimizer": tuple(OPTIMIZERS),
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
    "attention": ATTENTION,
    "optimizer_kernel": OPTIMIZER_KERNELS,
    "wrap": WRAP,
    "cross_entropy": CROSS_ENTROPY,
    "norm_kernel": NORM_KERNELS,
}
POSITIVE = (
    "recompute_every",
    "micro_batch",
    "seq_len",
    "accumulation",
    "cross_entropy_chunks",
    "tensor",
    "pipeline",
    "context",
    "virtual_stages",
)


def one_of(field_name: str, value: str, values) -> None:
    """Raise ValueError with the nearest of `values`, if `value` is none of them."""
    if value in values:
        return
    near = get_close_matches(str(value), values, 1, 0.0)
    raise ValueError(f"{field_name}={value!r} is not known; did you mean {near[0]!r}? There are {', '.join(values)}")
