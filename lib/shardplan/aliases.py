"""The words that people type for a strategy, in the planner's own, and back: options of `shardlab plan` to paste.

`zero3` and `fsdp` are FULL_SHARD; `hsdp` is FULL_SHARD among the GPUs of a node.
"""

from difflib import get_close_matches

from shardplan.strategy import CHOICES, Refusal
from shardsim.card_names import squashed
from shardsim.machines import Machine

ALIASES = {
    "sharding": {
        "FULL_SHARD": ("zero3", "zerostage3", "stage3", "3", "fsdp", "fsdp2", "fullyshard", "fullyshardeddataparallel"),
        "SHARD_GRAD_OP": ("fsdpzero2", "fsdpshardgradop"),
        "ZERO_2": ("zerostage2", "stage2", "2"),
        "ZERO_1": ("zerostage1", "stage1", "1", "distributedoptimizer"),
        "DDP": ("dataparallel", "distributeddataparallel", "noshard", "zero0", "zerostage0", "stage0", "0"),
        "DDP+ZERO_1": ("zeroredundancyoptimizer",),
    },
    "precision": {
        "fp32": ("float32", "full", "32"),
        "bf16-mixed": ("mixed", "mixedprecision"),
        "bf16-autocast": ("autocast", "amp", "bf16amp"),
        "bf16": ("bfloat16", "purebf16"),
        "fp16-mixed": ("fp16", "float16", "half"),
    },
    "products": {"fp8": ("float8", "e4m3", "tensorwise"), "fp8-rows": ("rowwise", "fp8rowwise"), "mxfp8": ("mx",)},
    "gather": {"fp8": ("float8", "precompute"), "fp8-rows": ("rowwise",)},
    "recompute": {"full": ("true", "yes", "on", "all"), "none": ("false", "no", "off"), "selective": ("sac",)},
    "optimizer": {"adamw": ("adam", "adamwtorch"), "adamw-8bit": ("adam8bit", "8bitadam", "adamwbnb8bit")},
    "muon_way": {"all-at-once": ("alltoall",), "every-rank": ("allgather", "replicate"), "one-owner": ("owner",)},
    "offload": {"none": ("no", "off"), "cpu": ("host", "yes", "true"), "nvme": ("disk", "ssd")},
    "schedule": {"1f1b": ("schedule1f1b",), "zb-h1": ("zb", "zb1p", "zerobubble"), "zb-h2": ("zb2p",)},
    "attention": {
        "flash": ("flash2", "flashattention", "flashattention2", "sdpa"),
        "flash-3": ("flash3", "flashattention3"),
        "math": ("eager",),
    },
    "wrap": {"block": ("layer", "blocks", "layers")},
    "cross_entropy": {"fused": ("liger",)},
}
HYBRID = {
    "hsdp": "FULL_SHARD",
    "hybrid": "FULL_SHARD",
    "hybridshard": "FULL_SHARD",
    "hybridshardzero2": "SHARD_GRAD_OP",
}
OPTIONS = {  # of the command: other names, as torchtitan, DeepSpeed, Megatron and Hugging Face have them
    "strategy": "sharding",
    "zero": "sharding",
    "activation-checkpointing": "recompute",
    "dp-shard": "shard-size",
    "data-parallel-shard-degree": "shard-size",
    "batch-size": "micro-batch",
    "micro-batch-size": "micro-batch",
    "per-device-train-batch-size": "micro-batch",
    "grad-accum": "accumulation",
    "gradient-accumulation-steps": "accumulation",
    "seq-length": "seq-len",
    "sequence-length": "seq-len",
    "context-length": "seq-len",
    **dict.fromkeys(("tp", "tensor-parallel", "tensor-parallel-size", "tensor-model-parallel-size"), "tensor"),
    **dict.fromkeys(("pp", "pipeline-parallel", "pipeline-parallel-size", "pipeline-model-parallel-size"), "pipeline"),
    **dict.fromkeys(("cp", "context-parallel", "context-parallel-size"), "context"),
    **dict.fromkeys(("ep", "expert-parallel", "expert-parallel-size", "expert-model-parallel-size"), "expert"),
    **dict.fromkeys(("async-tp", "enable-async-tensor-parallel", "tp-comm-overlap"), "async-tensor"),
    **dict.fromkeys(("pipeline-schedule", "pp-schedule", "pipeline-parallel-schedule"), "schedule"),
    "lora-r": "lora-rank",
    "activation-offload": "offload-activations",
    "activation-offloading": "offload-activations",
    "enable-activation-offloading": "offload-activations",
    "load-in-4bit": "base-4bit",
    "torch-compile": "compile",
}
SHARDING_FLAGS = ("fsdp", "fsdp2", "hsdp", "ddp", "zero1", "zero2", "zero3", "zero-1", "zero-2", "zero-3")
FLAGS = {  # words that set a field of another name
    "fp8": ("products", "fp8"),
    "float8": ("products", "fp8"),
    "mxfp8": ("products", "mxfp8"),
    "nvfp4": ("products", "nvfp4"),
    "fp8-gather": ("gather", "fp8"),
    "enable-fsdp-float8-all-gather": ("gather", "fp8"),
}
# What is no value of its field: why, and the fields that are meant
IN_16_BITS = "is of products only: weights and activations stay in 16 or 32 bits"
IN_FOUR_BITS = "can't be planned yet: its recipes keep some layers in 16 bits, each other ones"
TWO_STAGES = "can't be planned yet: its ranks hold two stages, DualPipe's of two copies of the weights"
MEANT = {
    **{
        ("schedule", name): (TWO_STAGES, {"schedule": "zb-h1"})
        for name in ("dualpipe", "dualpipev", "zbv", "zbvzerobubble")
    },
    ("precision", "fp8"): (IN_16_BITS, {"precision": "bf16-mixed", "products": "fp8"}),
    ("precision", "mxfp8"): (IN_16_BITS, {"precision": "bf16-mixed", "products": "mxfp8"}),
    **{("precision", name): (IN_FOUR_BITS, {"precision": "bf16-mixed"}) for name in ("nvfp4", "fp4", "mxfp4")},
    **{("products", name): (IN_FOUR_BITS, {"products": "mxfp8"}) for name in ("nvfp4", "fp4", "mxfp4")},
}


def as_options(fields: dict) -> str:
    """Return fields of a Strategy, and world_size, as options to paste: `--recompute full --no-compile --gpus 8`."""
    return " ".join(_option(name, value) for name, value in fields.items())


def _option(name: str, value: object) -> str:
    option = "gpus" if name == "world_size" else name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {'all' if value is None else value}"


def in_our_options(args: list[str], flags: set[str]) -> list[str]:
    """Return the command's words with our options. `--fsdp` is `--sharding fsdp`. A flag and its opposite cancel.

    Words of the form name=value after --measured get an option each. `flags`: options without a value.
    """
    ours: list[str] = []
    for arg in args:
        name, equals, value = arg.removeprefix("--").partition("=") if arg.startswith("--") else ("", "", "")
        opposite = f"--{name[3:]}" if name.startswith("no-") else f"--no-{name}"
        if name in FLAGS:
            ours += [f"--{FLAGS[name][0]}", FLAGS[name][1]]
        elif name in SHARDING_FLAGS:
            ours += ["--sharding", name]
        elif name and opposite in flags and f"--{name}" not in flags:
            ours = [word for word in ours if word != opposite]
        elif name:
            ours.append(f"--{OPTIONS.get(name, name)}{equals}{value}")
        elif "=" in arg and ours[-2:-1] == ["--measured"]:
            ours += ["--measured", arg]
        else:
            ours.append(arg)
    return ours


def in_our_words(strategy: dict, machine: Machine, gpus: int) -> dict:
    """Return the fields of a Strategy, with each value as CHOICES has it. HSDP shards among the GPUs of one node.

    Raises ValueError with the nearest value.
    """
    known = dict(strategy)
    for field, value in strategy.items():
        if field in CHOICES and value not in CHOICES[field]:
            known |= _known(field, value, strategy, min(gpus, machine.gpus_per_node))
    if str(known.get("shard_size")).lower() in ("all", "-1"):
        known["shard_size"] = None
    return known


def _known(field: str, value: object, strategy: dict, on_a_node: int) -> dict:
    word = squashed(str(value))
    if field == "sharding" and word in HYBRID:
        in_a_node = max(1, on_a_node // (strategy.get("tensor") or 1))
        return {field: HYBRID[word], "shard_size": strategy.get("shard_size") or in_a_node}
    words = {squashed(name): name for name in CHOICES[field]}
    words |= {alias: name for name, aliases in ALIASES.get(field, {}).items() for alias in aliases}
    if word in words:
        return {field: words[word]}
    if (field, word) in MEANT:
        why, fix = MEANT[field, word]
        raise Refusal(f"{field}={value!r} {why}", f"; did you mean {as_options(fix)}?", fix)
    problem, (close,) = f"{field}={value!r} is not known", get_close_matches(word, words, 1, 0.0)
    near = words[close]
    raise Refusal(problem, f"; did you mean {near!r}? There are {', '.join(CHOICES[field])}", {field: near})
