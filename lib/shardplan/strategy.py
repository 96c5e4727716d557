"""A strategy of training: every choice that a plan depends on, each checked as soon as it is made."""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from typing import Annotated

from shardplan.formulas import STRATEGIES


class Refusal(ValueError):
    """A choice that can't be planned. `problem`: its words; `fix`: fields of a Strategy, or world_size, that can be."""

    def __init__(self, problem: str, nearest: str, fix: dict) -> None:
        super().__init__(problem + nearest)
        self.problem, self.fix = problem, fix


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
    "bf16-fp32-reduce": Precision(2, 2, 2, 4, states=2),  # the same with FSDP's reduce_dtype=float32
}
# In fp16 the bytes are the same; a scaled loss has one number more. For cards that have no bf16
PRECISIONS |= {
    name.replace("bf16", "fp16"): of
    for name, of in PRECISIONS.items()
    if name.startswith("bf16-m") or "autocast" in name
}
# name: (states an element, bytes of each state); None: the precision's bytes
OPTIMIZERS = {"adamw": (2, None), "adamw-8bit": (2, 1 + 4 / 256), "momentum": (1, None), "sgd": (0, None)}
OPTIMIZERS |= {"muon": (1, None)}  # of the blocks' matrices; all other parameters have AdamW
# Sharded matrices are whole for an update: on every rank, on one owner after the other, or on all owners at once
MUON_WAYS = ("all-at-once", "every-rank", "one-owner")
# Keep all; every second product; all products; nothing. "pointwise": keep all but the results of norms and of the
# activation function, which one cheap kernel makes again (Megatron-Core's --recompute-modules layernorm mlp_act)
RECOMPUTE = ("none", "selective", "products", "full", "pointwise")
# Of the blocks' linear layers, not the router or grouped experts: as computed; E4M3 with a scale for a tensor or a row;
# MX, a scale for 32 numbers
PRODUCTS = ("compute", "fp8", "fp8-rows", "mxfp8")
# As FSDP gathers these layers' matrices: as computed; fp8 with a scale for each tensor, all of them in one message
# after the update, or each in a message before its gather; fp8 with scales of rows, which travel with them
GATHER = ("compute", "fp8", "fp8-each", "fp8-rows")
OFFLOAD = ("none", "cpu", "nvme")  # where the optimizer's states and the parameters' shards live between steps
# FlashAttention-2, its first version, its third one, cuDNN's kernel; "math" makes the (B, H, T, T) scores
ATTENTION = ("flash", "flash-1", "flash-3", "cudnn", "math")
_HOPPER, _BLACKWELL = ("H100", "H200"), ("B200", "B300", "GB200", "GB300")
NEWER_ATTENTION = {"flash-3": _HOPPER, "cudnn": _HOPPER + _BLACKWELL}  # and the cards for which they are planned
# From all logits at once: by torch's operations in fp32, compiled, or by flash-attention's kernel, which overwrites the
# logits with their gradient. Or from a part of the logits at a time: by torch's operations, or by Liger's kernel
# "shifted": from all logits in fp32 and a copy without the last position, as Hugging Face's models until 2024
# "held": from all logits in fp32, which the training loop holds until backward ends, as the model's output
# "plain": from all logits in the compute dtype, without a cast; the loop holds them until backward ends
# "vocabulary": from a part of the vocabulary at a time, whose logits backward makes again, as trainers of reinforcement
# learning do, which need the log-probabilities
CROSS_ENTROPY = ("whole", "compiled", "in-place", "chunked", "fused", "shifted", "held", "plain", "vocabulary")
# Linear layers of a block that get adapters. peft's own choice for Llama is query-value, QLoRA's is all
LORA_TARGETS = {
    "all": ("attention.", "feed_forward."),
    "attention": ("attention.",),
    "query-value": ("attention.query", "attention.value"),
}
# torch's operations in fp32, with a cast of the input for the square and another for the product, as the course's model
# has it, or one cast for both, as torchtitan's; or one kernel, which saves its input without a cast
NORM_KERNELS = ("composed", "one-cast", "fused")
# name: how often the weights' gradients of a micro-batch fill the bubble; (a, b): a p - b micro-batches in flight
SCHEDULES = {"1f1b": (0, (1, 0)), "zb-h1": (2, (1, 0)), "zb-h2": (3, (2, 1))}
OPTIMIZER_KERNELS = ("foreach", "fused", "forloop")
WRAP = ("block", "whole")


@dataclass(frozen=True)
class Strategy:
    """Choices for a training, each with its words. Raises ValueError that names the field and the nearest valid value.

    A number must be at least 1 if its default is.
    """

    sharding: Annotated[str, "what is sharded over the ranks"] = "FULL_SHARD"
    shard_size: Annotated[int | None, "hybrid: number of ranks that share one copy of the model; None: all"] = None
    precision: Annotated[str, "dtypes in which tensors are stored, computed and reduced"] = "bf16-mixed"
    products: Annotated[str, "number format of the blocks' matrix products"] = "compute"
    # as Transformer Engine; torchao keeps them in 16 bits
    inputs_in_8_bits: Annotated[bool, "with fp8 products: keep their inputs in 8 bits for backward"] = False
    gather: Annotated[str, "number format in which FSDP gathers the blocks' matrices"] = "compute"
    recompute: Annotated[str, "activations that backward recomputes"] = "none"
    recompute_every: Annotated[int, "with full: recompute one block of this many"] = 1
    offload: Annotated[str, "where optimizer states and shards are stored between uses"] = "none"
    # As torchtune's OffloadActivations: each tensor once; the copies run beside the computation
    offload_activations: Annotated[bool, "copy what blocks keep to the host until backward"] = False
    optimizer: Annotated[str, "optimizer; decides the bytes of its states"] = "adamw"
    # "foreach" is torch's default on a GPU, and "forloop" on a CPU
    optimizer_kernel: Annotated[str, "implementation in torch.optim"] = "foreach"
    muon_way: Annotated[str, "with muon and FSDP: where a matrix is whole for its update"] = "all-at-once"
    lora_rank: Annotated[int, "train adapters of this rank, not the model"] = 0
    lora_targets: Annotated[str, "linear layers that get adapters"] = "all"
    lora_dropout: Annotated[bool, "dropout before each adapter"] = False
    base_4bit: Annotated[bool, "QLoRA: frozen weights in NF4"] = False
    micro_batch: Annotated[int, "sequences that a GPU computes at once"] = 1
    seq_len: Annotated[int, "tokens in a sequence"] = 2048
    accumulation: Annotated[int, "micro-batches in a step"] = 1
    accumulate_unsharded: Annotated[bool, "no_sync: gradients are reduced once a step"] = False  # and whole until then
    wrap: Annotated[str, "FSDP's unit: each block, or the whole model"] = "block"
    compile: Annotated[bool, "torch.compile"] = False
    attention: Annotated[str, "attention kernel; math stores the whole matrix of scores"] = "flash"
    cross_entropy: Annotated[str, "loss from all logits at once, or from one part at a time"] = "whole"
    cross_entropy_chunks: Annotated[int, "number of parts"] = 8
    fp32_logits: Annotated[bool, "the output layer's product in fp32, from casts of its factors"] = False
    bucket_cap_mb: Annotated[float, "bucket size of DDP and ZeRO, MiB"] = 25.0
    gradient_as_bucket_view: Annotated[bool, "DDP: gradients are views of the buckets"] = False
    expandable_segments: Annotated[bool, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"] = False
    tensor: Annotated[int, "degree of tensor parallelism"] = 1
    pipeline: Annotated[int, "degree of pipeline parallelism"] = 1
    context: Annotated[int, "degree of context parallelism"] = 1
    expert: Annotated[int, "degree of expert parallelism, among the ranks that share the data"] = 1
    # as DeepEP; an all_to_all sends one for each of the token's experts
    once_a_rank: Annotated[bool, "with expert: send a token once to a rank that has several of its experts"] = False
    imbalance: Annotated[float, "tokens of the busiest rank's experts over the mean"] = 1.0
    virtual_stages: Annotated[int, "with pipeline: stages on each rank, for interleaved 1F1B"] = 1
    schedule: Annotated[str, "with pipeline: 1F1B, or zero-bubble, which splits backward in two"] = "1f1b"
    async_tensor: Annotated[bool, "with tensor: cut products in chunks, behind which the messages travel"] = False
    # norms and residuals are split too; the words are those of the option --no-sequence-parallel
    sequence_parallel: Annotated[bool, "with tensor: keep norms and residuals whole on every rank"] = True
    # as Megatron; DTensor keeps the input whole
    loss_parallel: Annotated[bool, "with tensor: gather all logits on every rank"] = True
    gather_again: Annotated[
        bool, "with tensor: keep only a share of each product's input, and gather it again in backward"
    ] = False
    # as DTensor's layers, if none gathers the input of several; Megatron's gather it once
    gather_each: Annotated[bool, "with tensor: each product gathers its input, also if products share it"] = False
    # as Megatron's; DTensor copies what it gathers or scatters along another dimension than the first
    sequence_first: Annotated[bool, "with tensor: positions come first in memory, so messages need no copies"] = False
    norm_kernel: Annotated[str, "torch's operations in fp32, or one kernel that saves its input without a cast"] = (
        "composed"
    )

    def __post_init__(self) -> None:
        for name, values in CHOICES.items():
            one_of(name, getattr(self, name), values)
        for name, default in WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise Refusal(
                    f"{name}={value!r}, but it must be a whole number", f", such as {default}", {name: default}
                )
            if default and value < 1:
                raise Refusal(f"{name}={value}, but it must be at least 1", "", {name: 1})

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def sharded(self) -> tuple[bool, bool, bool]:
        """Three flags: are parameters, gradients, optimizer states sharded? With sharding="NONE" nothing is."""
        return STRATEGIES.get(self.sharding, (False, False, False))

    def adapts(self, name: str) -> bool:
        """Tell whether this linear layer, such as "attention.query", gets an adapter."""
        return self.lora_rank > 0 and name.startswith(LORA_TARGETS[self.lora_targets])

    def eight_bits(self, name: str) -> bool:
        """Tell whether this linear layer, or the product of this name, is one of those that can have 8 bits."""
        return name.startswith(("attention.", "feed_forward.", "shared.")) and "_norm" not in name

    def recomputes(self, block: int) -> bool:
        """Tell whether this block (from 1) is recomputed. "full": every `recompute_every`-th; else all or none."""
        every = self.recompute_every if self.recompute == "full" else 1
        return self.recompute != "none" and block % every == 0


CHOICES = {
    "sharding": ("NONE", *STRATEGIES),  # NONE: one GPU, and nothing wrapped
    "precision": tuple(PRECISIONS),
    "products": PRODUCTS,
    "gather": GATHER,
    "optimizer": tuple(OPTIMIZERS),
    "muon_way": MUON_WAYS,
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
    "attention": ATTENTION,
    "optimizer_kernel": OPTIMIZER_KERNELS,
    "wrap": WRAP,
    "schedule": tuple(SCHEDULES),
    "cross_entropy": CROSS_ENTROPY,
    "norm_kernel": NORM_KERNELS,
    "lora_targets": tuple(LORA_TARGETS),
}
WHOLE_NUMBERS = {f.name: f.default for f in fields(Strategy) if type(f.default) in (int, type(None))}  # and defaults


def one_of(field_name: str, value: str, values) -> None:
    """Raise ValueError with the nearest of `values`, if `value` is none of them."""
    if value in values:
        return
    near = get_close_matches(str(value), values, 1, 0.0)
    problem = f"{field_name}={value!r} is not known"
    raise Refusal(problem, f"; did you mean {near[0]!r}? There are {', '.join(values)}", {field_name: near[0]})
