"""Checks of a job: do the model, the cluster and the strategy go together? Each raises Unfit, with the nearest fields.

Not checked, because it works and is only slow: tensor parallelism across nodes, fewer micro-batches than stages.
"""

from math import gcd, isqrt, prod

from shardplan.job import Job
from shardplan.strategy import NEWER_ATTENTION, PRECISIONS, SCHEDULES

EXPERT_SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "ZERO_1")


class Unfit(Exception):
    def __init__(self, field: str, value, why: str, nearest: dict) -> None:
        self.field, self.value, self.why, self.nearest = field, value, why, nearest


def check(setup: Job) -> None:
    shape = (_world, _dtype, _tensor, _ranks, _nodes, _sequence, _sharding, _experts)
    for of in (*shape, _lora, _overlapped, _offload, _activations, _muon, _products, _gather, _rest):
        of(setup)


def _dtype(setup: Job) -> None:
    precision, gpu = setup.strategy.precision, setup.machine.gpu
    if precision.startswith("bf16") and "bf16" not in gpu.flops:
        why = f"{gpu.name} has no bf16: torch emulates it, more slowly than it computes in fp32"
        in_fp16 = precision.replace("bf16", "fp16")
        _refuse("precision", precision, why, in_fp16 if in_fp16 in PRECISIONS else "fp16-master")


def _world(setup: Job) -> None:
    world_size = setup.world_size
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        _refuse("world_size", world_size, "a job needs a whole number of GPUs, at least 1", 1)


def _ranks(setup: Job) -> None:
    s, world_size = setup.strategy, setup.world_size
    if s.pipeline > setup.shape.n_layers:
        why = f"{setup.shape.name} has {setup.shape.n_layers} blocks, and a stage holds at least one"
        _refuse("pipeline", s.pipeline, why, setup.shape.n_layers)
    most = (setup.shape.n_layers + 2) // s.pipeline if s.pipeline > 1 else 1
    if s.virtual_stages > most:
        pieces = (
            f"{setup.shape.n_layers} blocks, the embedding and the output layer fill {s.pipeline} stages {most} times"
        )
        why = pieces if s.pipeline > 1 else "without a pipeline there is nothing to interleave"
        _refuse("virtual_stages", s.virtual_stages, why, most)
    model_ranks = s.tensor * s.pipeline * s.context
    if world_size % model_ranks:
        why = f"tensor={s.tensor} x pipeline={s.pipeline} x context={s.context} take {model_ranks} GPUs at a time"
        _refuse("world_size", world_size, why, _multiple(world_size, model_ranks))


def _nodes(setup: Job) -> None:
    machine, world_size = setup.machine, setup.world_size
    n = machine.gpus_per_node
    if world_size <= n:
        return
    if machine.between is None:
        why = f"{machine.name} is one box; to join several, say by what: machine='{machine.name}, 100 Gb/s'"
        _refuse("world_size", world_size, why, n)
    if world_size % n:
        _refuse("world_size", world_size, f"a node of {machine.name} has {n} GPUs", _multiple(world_size, n))


def _tensor(setup: Job) -> None:
    shape, tensor = setup.shape, setup.strategy.tensor
    widths = {
        "heads": shape.n_heads,
        "key and value heads": shape.n_kv_heads,
        "hidden width": shape.experts.hidden_dim if shape.experts else shape.hidden_dim,
        "rows of the vocabulary": shape.vocab_size,
    }
    common = gcd(*widths.values(), _left_for(setup, "tensor"))
    for words, width in widths.items():
        if width % tensor:
            why = f"it must divide the {width} {words} of {shape.name}"
            _refuse("tensor", tensor, why, divisor(tensor, common))


def _sequence(setup: Job) -> None:
    s, shape = setup.strategy, setup.shape
    if s.seq_len > shape.max_seq_len:
        why = f"{shape.name} was made for {shape.max_seq_len} positions"
        _refuse("seq_len", s.seq_len, why, shape.max_seq_len)
    if s.seq_len % s.context:
        common = gcd(s.seq_len, _left_for(setup, "context"))
        _refuse("context", s.context, f"it must divide seq_len={s.seq_len}", divisor(s.context, common))
    cards = NEWER_ATTENTION.get(s.attention, ("",))
    if not setup.machine.gpu.name.startswith(cards):
        why = f"it is planned on {', '.join(cards)}, not on {setup.machine.gpu.name}"
        _refuse("attention", s.attention, why, "flash")
    if s.context > 1 and s.attention == "math":
        _refuse("attention", s.attention, f"a ring of context={s.context} passes on flash attention's sums", "flash")
    if shape.latent and s.attention == "math":
        _refuse("attention", s.attention, "latent attention is planned without scores", "flash")
    positions = s.seq_len // s.context
    if s.sequence_parallel and positions % s.tensor:
        why = f"sequence_parallel gives each of tensor={s.tensor} ranks an equal part of the positions"
        _refuse("seq_len", s.seq_len, why, _multiple(s.seq_len, s.tensor * s.context, shape.max_seq_len))


def _sharding(setup: Job) -> None:
    s, size = setup.strategy, setup.strategy.shard_size
    if s.sharding == "NONE" and setup.data_ranks > 1:
        why = f"nothing would add up the gradients of {setup.data_ranks} ranks"
        _refuse("sharding", s.sharding, why, "DDP")
    if size is None:
        return
    if not s.sharded[0]:
        why = f"{s.sharding} keeps whole parameters; hybrid sharding is FULL_SHARD or SHARD_GRAD_OP among fewer ranks"
        _refuse("shard_size", size, why, None)
    if size < 1 or setup.data_ranks % size:
        why = f"it must divide the {setup.data_ranks} ranks that share the data"
        _refuse("shard_size", size, why, divisor(size, setup.data_ranks))


def _experts(setup: Job) -> None:
    s, experts = setup.strategy, setup.shape.experts
    if s.expert > 1 and not experts:
        _refuse("expert", s.expert, f"{setup.shape.name} is no mixture of experts", 1)
    common = gcd(experts.number, setup.shards) if experts else 1
    if common % s.expert:
        why = (
            f"it must divide the {experts.number} experts of {setup.shape.name}, and the {setup.shards} ranks of a copy"
        )
        _refuse("expert", s.expert, why, divisor(s.expert, common))
    if s.expert > 1 and s.sharding not in EXPERT_SHARDINGS:
        why = f"experts on different ranks are planned with {', '.join(EXPERT_SHARDINGS)}"
        _refuse("sharding", s.sharding, why, "FULL_SHARD")
    if s.imbalance < 1:
        _refuse("imbalance", s.imbalance, "the busiest rank has at least the mean", 1.0)


def _lora(setup: Job) -> None:
    s, shape = setup.strategy, setup.shape
    narrowest = min(shape.dim, shape.q_dim, shape.kv_dim, shape.hidden_dim)
    if not 0 <= s.lora_rank < narrowest:
        why = f"the narrowest matrix of {shape.name} is {narrowest} wide: LoRA's are narrower, and 0 is none"
        _refuse("lora_rank", s.lora_rank, why, min(max(s.lora_rank, 0), narrowest - 1))
    if s.base_4bit and not s.lora_rank:
        _refuse("base_4bit", True, "weights in 4 bits can't be trained: give a lora_rank, such as 16", False)


def _offload(setup: Job) -> None:
    s = setup.strategy
    if s.offload == "none":
        return
    if s.sharding in ("DDP", "DDP+ZERO_1"):
        why = f"{s.sharding} updates whole parameters on the GPU; the engines offload from sharding='ZERO_1' on"
        _refuse("offload", s.offload, why, "none")
    if s.offload == "nvme" and s.sharding != "FULL_SHARD":
        why = f"a disk holds the shards of ZeRO-3, sharding='FULL_SHARD', not of {s.sharding}"
        _refuse("offload", s.offload, why, "cpu")
    if s.offload == "nvme" and not setup.machine.drive:
        _refuse("offload", s.offload, f"{setup.machine.name} has no NVMe drives", "cpu")


def _overlapped(setup: Job) -> None:
    s = setup.strategy
    if s.async_tensor and s.tensor == 1:
        _refuse("async_tensor", True, "without tensor parallelism there is no message to hide", False)
    if s.async_tensor and not s.sequence_parallel:
        why = "an all_reduce can't be cut into hops beside its product; gathers and scatters of sequences can"
        _refuse("sequence_parallel", False, why, True)
    if s.async_tensor and s.gather_each:
        why = "beside a message's hops there are products that need it; a message for each product is planned alone"
        _refuse("gather_each", True, why, False)
    if s.schedule == "1f1b":
        return
    if s.pipeline == 1:
        _refuse("schedule", s.schedule, "without a pipeline there is no bubble", "1f1b")
    if s.virtual_stages > 1:
        _refuse("virtual_stages", s.virtual_stages, f"{s.schedule} is planned with one stage on a rank", 1)
    a, b = SCHEDULES[s.schedule][1]
    if s.accumulation < a * s.pipeline - b:
        why = f"{s.schedule} on {s.pipeline} ranks needs as many micro-batches as it keeps in flight"
        _refuse("accumulation", s.accumulation, why, a * s.pipeline - b)


def _activations(setup: Job) -> None:
    s = setup.strategy
    if s.offload_activations and s.offload != "none":
        why = "offloaded parameters or states use the same port to the host, and the two are not planned together"
        _refuse("offload_activations", True, why, False)


def _muon(setup: Job) -> None:
    s = setup.strategy
    if s.optimizer != "muon":
        return
    if s.sharding in ("ZERO_1", "ZERO_2", "DDP+ZERO_1"):
        why = f"{s.sharding} is one optimizer for all parameters; Muon needs whole matrices, and AdamW beside it"
        _refuse("sharding", s.sharding, why, "FULL_SHARD")
    if s.tensor > 1:
        _refuse("tensor", s.tensor, "Muon is planned with matrices that only the data's ranks share", 1)
    if s.offload != "none":
        _refuse("offload", s.offload, "Muon's products are planned on the GPU, with its momentum", "none")
    if s.lora_rank:
        _refuse("optimizer", s.optimizer, "a product of two adapters is what would have to be orthogonal", "adamw")


def _products(setup: Job) -> None:
    s, gpu = setup.strategy, setup.machine.gpu
    if s.products == "compute":
        return
    if "fp8" not in gpu.flops:
        _refuse("products", s.products, f"{gpu.name} has no products in 8 bits", "compute")
    if s.products == "mxfp8" and gpu.capability < (9, 5):
        why = f"{gpu.name} has no products with MX scales; Blackwell and MI355X have"
        _refuse("products", s.products, why, "fp8")
    if s.bytes.compute != 2:
        _refuse("precision", s.precision, "fp8 products are planned between activations of 16 bits", "bf16-mixed")
    if not s.compile:
        why = "without torch.compile each cast to 8 bits is several passes in fp32, slower than products in 16 bits"
        _refuse("compile", s.compile, why, True)
    if s.lora_rank:
        _refuse("products", s.products, "adapters are planned in 16 bits", "compute")


def _gather(setup: Job) -> None:
    s = setup.strategy
    if s.gather == "compute":
        return
    if not s.sharded[0]:
        _refuse("gather", s.gather, f"{s.sharding} gathers no parameters for a block, only FSDP does", "compute")
    if s.lora_rank:
        _refuse("gather", s.gather, "what is frozen needs no fp8 copy of a master weight", "compute")
    if s.tensor > 1:
        _refuse("gather", s.gather, "scales are planned for matrices that only the data's ranks share", "compute")
    if s.products == "fp8" and s.gather == "fp8-rows":
        _refuse("gather", s.gather, "products='fp8' has one scale for a matrix, so its gather must have it, too", "fp8")
    if s.products in ("fp8-rows", "mxfp8"):
        why = f"products={s.products!r} scales a matrix anew for backward, along its other side, from 16 bits"
        _refuse("gather", s.gather, why, "compute")


def _rest(setup: Job) -> None:
    s = setup.strategy
    if s.recompute_every > 1 and s.recompute != "full":
        _refuse("recompute_every", s.recompute_every, f"it goes with recompute='full', not with {s.recompute!r}", 1)
    if s.bucket_cap_mb <= 0:
        _refuse("bucket_cap_mb", s.bucket_cap_mb, "a bucket holds something", 25.0)
    if s.inputs_in_8_bits and s.products == "compute":
        _refuse("inputs_in_8_bits", True, "it goes with products in 8 bits, such as 'fp8'", False)
    if s.cross_entropy in ("chunked", "vocabulary") and s.cross_entropy_chunks > setup.tokens:
        why = f"a micro-batch has {setup.tokens} positions on a rank"
        _refuse("cross_entropy_chunks", s.cross_entropy_chunks, why, setup.tokens)


def _refuse(field: str, value, why: str, nearest) -> None:
    raise Unfit(field, value, why, {field: nearest})


def _left_for(setup: Job, degree: str) -> int:
    """Number of GPUs that the other degrees leave for this one."""
    s = setup.strategy
    others = {"tensor": s.tensor, "pipeline": s.pipeline, "context": s.context} | {degree: 1}
    return setup.world_size // prod(others.values())


def _multiple(value: int, of: int, most: int | None = None) -> int:
    """The multiple of `of` that is nearest to `value`, at least one of it and at most `most`."""
    nearest = max(1, (2 * value + of) // (2 * of)) * of
    return nearest if most is None or nearest <= most else max(of, most // of * of)


def divisor(value: int, of: int) -> int:
    """The divisor of `of` that is nearest to `value`."""
    small = [d for d in range(1, isqrt(of) + 1) if of % d == 0]
    return min((*small, *(of // d for d in small)), key=lambda d: (abs(d - value), d))
