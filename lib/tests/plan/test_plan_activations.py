"""Activations in closed form, beside what autograd keeps and what a MemoryTracker sees of the real model, on a CPU."""

import math
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import accumulate, count
from math import prod

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile
from torch.utils.checkpoint import CheckpointPolicy

from shardlab import launch
from shardlab import model as model_file
from shardlab.measure.memory import MemoryTracker
from shardlab.model import Block, ModelConfig, RMSNorm, rotary_angles, rotate
from shardlab.nested_tensors import plain_tensors
from shardlab.recompute import checkpoint_wrapper, create_selective_checkpoint_contexts, save_products
from shardnext.qlora import add_lora
from shardplan import activations
from shardplan.activations import model as planned_model
from shardplan.planned_job import Setup
from shardplan.records import Part
from shardplan.shape import Shape
from shardplan.strategy import PRECISIONS, Strategy
from shardsim.machines import machine

# vocab_size, dim, n_layers, n_heads, n_kv_heads, hidden_dim, max_seq_len; and B, T
WIDE = ModelConfig(256, 64, 1, 8, 2, 192, 64), 2, 24
ODD = ModelConfig(257, 48, 1, 6, 6, 112, 64), 3, 13
LONG = ModelConfig(1000, 24, 1, 2, 1, 40, 512), 1, 150
SHAPES = {"wide": WIDE, "odd": ODD, "long": LONG}


def setup(config: ModelConfig, batch: int, positions: int, **strategy) -> Setup:
    flags = strategy.pop("flags", {})
    choices = {"sharding": "DDP", "precision": "fp32", "micro_batch": batch, "seq_len": positions} | strategy
    return Setup(
        replace(Shape.of("test", config), **flags),
        machine("dgx-h100"),
        choices.get("tensor", 1) * choices.get("context", 1),
        Strategy(**choices),
    )


# The real part, as it lies in a model: nobody but autograd holds its input, its result and the gradients of both


class Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, shape, dtype):
        return torch.randn(shape, dtype=dtype)

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros(1), None, None


class Behind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.like = y.shape, y.dtype
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        shape, dtype = ctx.like
        return torch.randn(shape, dtype=dtype)


def measure_block(at: Setup, first: bool = False) -> "Bytes":
    strategy, shape = at.strategy, at.shape
    block = _initialised(real_block(at), strategy.precision)
    if strategy.lora_rank:
        block = with_adapters(block, at)
    if strategy.recompute != "none":
        checkpoint_wrapper(block, **_context(strategy.recompute))
    cos, sin = rotary_angles(strategy.seq_len, shape.head_dim, 1e4, torch.device("cpu"))
    leaf = torch.zeros(1, requires_grad=not first)
    form = (strategy.micro_batch, strategy.seq_len, shape.dim)
    with MemoryTracker(block) as tracker:
        tracker.label("other", cos, sin, leaf)
        with _attention(strategy.attention):
            with _autocast(strategy.precision):
                y = block(Before.apply(leaf, form, _dtype(strategy.precision)), cos, sin)
            loss = Behind.apply(y)
            del y
            loss.backward()
    return measured(tracker, scalars=8)  # the loss, and the 1 that backward begins with


def measure_head(at: Setup) -> "Bytes":
    strategy, shape = at.strategy, at.shape
    output = nn.Linear(shape.dim, shape.vocab_size, bias=False)
    head = _initialised(nn.ModuleList([norm_of(shape), output]), strategy.precision).requires_grad_(
        not strategy.lora_rank
    )
    form = (strategy.micro_batch, strategy.seq_len, shape.dim)
    leaf, targets = torch.zeros(1, requires_grad=True), torch.zeros(form[:2], dtype=torch.int64)
    with MemoryTracker(head) as tracker:
        tracker.label("other", leaf, targets)
        with _autocast(strategy.precision):
            loss = _loss(head, Before.apply(leaf, form, _dtype(strategy.precision)), targets, at)
        loss.backward()
    return measured(tracker, scalars=4)


def _loss(head, x, targets, at: Setup):
    if at.strategy.cross_entropy == "in-place":
        return InPlace.apply(head[1](head[0](x)))
    if at.strategy.cross_entropy in ("chunked", "fused"):
        return GradientsInForward.apply(head[0](x), head[1].weight, targets, at)
    logits_BTV = head[1](head[0](x))
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets.flatten())


class GradientsInForward(torch.autograd.Function):
    """A chunk's logits, loss and gradients at a time: by torch's operations, or as Liger's kernel does it, in place."""

    @staticmethod
    def forward(ctx, x, w, targets, at):
        x, targets = x.flatten(0, 1), targets.flatten()
        of_x, of_w = torch.zeros_like(x), torch.zeros_like(w) if w.requires_grad else None
        by_kernel = at.strategy.cross_entropy == "fused"
        size = chunk_size(at)
        losses = torch.zeros(len(x)) if by_kernel else None
        for start in range(0, len(x), size):
            span = slice(start, start + size)
            (liger if by_kernel else by_torch)(x[span], w, targets[span], of_x[span], of_w)
        del losses
        ctx.save_for_backward(of_x, of_w)
        ctx.at = at
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        of_x, of_w = ctx.saved_tensors
        shape = ctx.at.strategy.micro_batch, -1, of_x.shape[1]
        return of_x.mul_(gradient).view(shape), None if of_w is None else of_w.mul_(gradient), None, None


def chunk_size(at: Setup) -> int:
    strategy, tokens = at.strategy, at.strategy.micro_batch * at.strategy.seq_len
    if strategy.cross_entropy == "chunked":
        return math.ceil(tokens / strategy.cross_entropy_chunks)
    least = math.ceil(tokens / math.ceil(at.shape.vocab_size / at.shape.dim))
    return min(tokens, 2 ** math.ceil(math.log2(least)))


def by_torch(x, w, targets, of_x, of_w) -> None:
    wanted = [x.requires_grad_(), w] if w.requires_grad else [x.requires_grad_()]
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(nn.functional.linear(x, w).float(), targets)
    gradients = torch.autograd.grad(loss, wanted)
    of_x.copy_(gradients[0])
    if of_w is not None:
        of_w.add_(gradients[1])


def liger(x, w, targets, of_x, of_w) -> None:
    of_logits = x @ w.t()
    of_x.copy_(of_logits @ w)
    if of_w is not None:
        of_w.add_(torch.mm(of_logits.t(), x).float())


def measure_embedding(at: Setup) -> "Bytes":
    strategy, shape = at.strategy, at.shape
    embedding = _initialised(nn.Embedding(shape.vocab_size, shape.dim), strategy.precision)
    tokens = torch.zeros(strategy.micro_batch, strategy.seq_len, dtype=torch.int64)
    with MemoryTracker(embedding) as tracker:
        tracker.label("other", tokens)
        angles = rotary_angles(strategy.seq_len, shape.head_dim, 1e4, torch.device("cpu"))
        loss = Behind.apply(embedding(tokens))
        loss.backward()
        del angles
    found = measured(tracker, scalars=8)
    return replace(found, forward=found.forward - 4)


# The model's own block, and with what other models do differently


def real_block(at: Setup) -> nn.Module:
    shape, block = at.shape, Block(config_of(at.shape))
    block.attention_norm, block.feed_forward_norm = (norm_of(shape, at.strategy.norm_kernel) for _ in range(2))
    if shape.qkv_bias or shape.linear_bias or shape.qk_norm or shape.learned_positions:
        block.attention = GeneralAttention(shape)
    if not shape.gated:
        block.feed_forward = GELUFeedForward(shape)
    return block


def norm_of(shape: Shape, norm_kernel: str = "composed") -> nn.Module:
    rms = OneCastNorm if norm_kernel == "one-cast" else RMSNorm
    return nn.LayerNorm(shape.dim) if shape.norm == "layer" else rms(shape.dim, 1e-5)


class OneCastNorm(RMSNorm):
    """As torchtitan's of 2024: one cast serves the square and the product."""

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


def config_of(shape: Shape) -> ModelConfig:
    return ModelConfig(
        shape.vocab_size, shape.dim, 1, shape.n_heads, shape.n_kv_heads, shape.hidden_dim, shape.max_seq_len
    )


class GELUFeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.dim, shape.hidden_dim, bias=shape.linear_bias)
        self.down = nn.Linear(shape.hidden_dim, shape.dim, bias=shape.linear_bias)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class GeneralAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.query = nn.Linear(shape.dim, shape.q_dim, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.dim, shape.kv_dim, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.dim, shape.kv_dim, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.q_dim, shape.dim, bias=shape.linear_bias)
        if shape.qk_norm:
            self.query_norm, self.key_norm = RMSNorm(shape.head_dim, 1e-5), RMSNorm(shape.head_dim, 1e-5)

    def forward(self, x, cos, sin):
        heads = (*x.shape[:2], -1, self.shape.head_dim)
        q = self.turned("query", self.query(x).view(heads), cos, sin)
        k = self.turned("key", self.key(x).view(heads), cos, sin)
        v = self.value(x).view(heads)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def turned(self, name, x, cos, sin):
        if self.shape.qk_norm:
            x = getattr(self, f"{name}_norm")(x)
        return x if self.shape.learned_positions else rotate(x, cos, sin)


class PlainLoRA(nn.Module):
    """As `quantised.LoRALinear`, of a weight that is frozen as it is."""

    def __init__(self, linear: nn.Linear, rank: int, dropout: bool) -> None:
        super().__init__()
        self.linear, self.dropout = linear, nn.Dropout(0.1) if dropout else nn.Identity()
        out_features, in_features = linear.weight.shape
        self.lora_a = nn.Parameter(linear.weight.new_ones(rank, in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(out_features, rank))

    def forward(self, x):
        linear = nn.functional.linear
        y = self.linear(x)
        return y + 2.0 * linear(linear(self.dropout(x), self.lora_a), self.lora_b)


def with_adapters(block: nn.Module, at: Setup) -> nn.Module:
    if at.strategy.base_4bit:
        return add_lora(block, at.strategy.lora_rank, scaler_block_size=8)
    block.requires_grad_(False)
    for of in ("attention", "feed_forward"):
        part = getattr(block, of)
        for name, linear in list(part.named_children()):
            if at.strategy.adapts(f"{of}.{name}"):
                setattr(part, name, PlainLoRA(linear, at.strategy.lora_rank, at.strategy.lora_dropout))
    return block


def _attention(kernel: str):
    return sdpa_kernel(SDPBackend.MATH) if kernel == "math" else nullcontext()


def _initialised(module: nn.Module, precision: str) -> nn.Module:
    for p in module.parameters():
        nn.init.normal_(p, std=0.02)
    return module.to(_dtype(precision))


def _dtype(precision: str) -> torch.dtype:
    of = PRECISIONS[precision]
    return torch.bfloat16 if of.compute == 2 and not of.autocast else torch.float32


def _autocast(precision: str):
    return torch.autocast("cpu", torch.bfloat16, enabled=PRECISIONS[precision].autocast)


def _context(recompute: str) -> dict:
    policies = {"products": save_products, "selective": every_second_product()}
    if recompute == "full":
        return {}
    return {"context_fn": partial(create_selective_checkpoint_contexts, policies[recompute])}


def every_second_product():
    numbers = count(1)

    def policy(ctx, op, *args, **kwargs):
        is_saved = "attention" in op.name() or (op is torch.ops.aten.mm.default and next(numbers) % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


@dataclass
class Bytes:
    """Beside what was there before: kept when backward begins, and the most in forward and in backward."""

    kept: int
    forward: int
    backward: int


def measured(tracker: MemoryTracker, scalars: int) -> Bytes:
    """`scalars`: bytes of the loss and of the 1 that backward begins with, where the part does not make them."""
    totals = [(seconds, sum(kinds.values())) for seconds, kinds in tracker.timeline()]
    begins = [seconds for seconds, phase in tracker.phases() if phase == "backward"][-1]
    before = totals[0][1]
    forward = [total - before for seconds, total in totals if seconds < begins]
    backward = [total - before for seconds, total in totals if seconds >= begins]
    return Bytes(forward[-1] - scalars, max(forward), max(backward) - scalars)


def predicted(part: Part, parameters: dict[str, tuple[int, ...]], gradient_bytes: int) -> Bytes:
    def n_bytes(point):
        return bytes_of(point.terms) + gradient_bytes * sum(prod(parameters[name]) for name in point.gradients)

    return Bytes(bytes_of(part.kept), n_bytes(part.forward), max(map(n_bytes, part.backward)))


def bytes_of(terms) -> int:
    return sum(term.n_bytes for term in terms)


def predict_block(at: Setup, first: bool = False) -> Bytes:
    rank = at.strategy.lora_rank
    adapters = {
        f"{name.removesuffix('.weight')}.{kind}": shape
        for name, (rows, columns) in matrices(at.shape).items()
        for kind, shape in (("lora_a", (rank, columns)), ("lora_b", (rows, rank)))
    }
    part = activations.block(at, at.strategy.recompute != "none", first=first)
    return predicted(part, at.shape.block() | adapters, _gradient_bytes(at))


def matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    return {name: form for name, form in shape.block().items() if len(form) == 2}


def predict_root(part, at: Setup) -> Bytes:
    return predicted(part(at), at.shape.root(), _gradient_bytes(at))


def _gradient_bytes(at: Setup) -> int:
    return 4 if at.strategy.bytes.autocast else at.strategy.bytes.compute


PRECISION = pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-autocast"])
RECOMPUTE = pytest.mark.parametrize("recompute", ["none", "full", "selective", "products"])


@RECOMPUTE
@PRECISION
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block(shape, precision, recompute):
    """Kept, the fullest moment of forward and that of backward, to the byte."""
    at = setup(*SHAPES[shape], precision=precision, recompute=recompute)
    assert measure_block(at) == predict_block(at)


@PRECISION
@pytest.mark.parametrize("shape", SHAPES)
def test_the_embedding_and_the_head(shape, precision):
    at = setup(*SHAPES[shape], precision=precision)
    assert measure_embedding(at) == predict_root(activations.embedding, at)
    assert measure_head(at) == predict_root(activations.head, at)


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_norm_with_one_cast(precision, recompute):
    at = setup(*WIDE, precision=precision, recompute=recompute, norm_kernel="one-cast")
    assert measure_block(at) == predict_block(at)


@RECOMPUTE
@PRECISION
@pytest.mark.parametrize("shape", ["wide", "long"])
def test_attention_with_scores(shape, precision, recompute):
    at = setup(*SHAPES[shape], precision=precision, recompute=recompute, attention="math")
    assert measure_block(at) == predict_block(at)


OTHERS = {
    "GPT-2": {"gated": False, "norm": "layer", "qkv_bias": True, "linear_bias": True, "learned_positions": 64},
    "Qwen 2": {"qkv_bias": True},
    "Qwen 3": {"qk_norm": True},
    "MPT": {"gated": False, "norm": "layer", "learned_positions": 64},
}


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("flags", OTHERS.values(), ids=OTHERS)
def test_other_models(flags, precision, recompute):
    at = setup(*WIDE, precision=precision, recompute=recompute, flags=flags)
    assert measure_block(at) == predict_block(at)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("four_bits", [False, True])
def test_adapters(four_bits, precision, recompute):
    at = setup(*WIDE, precision=precision, recompute=recompute, lora_rank=8, base_4bit=four_bits)
    assert measure_block(at) == predict_block(at)
    assert measure_head(at) == predict_root(activations.head, at)


def test_the_first_block_saves_less_if_nothing_before_it_is_trained():
    at = setup(*WIDE, lora_rank=8)
    assert measure_block(at, first=True) == predict_block(at, first=True)
    assert predict_block(at, first=True).kept < predict_block(at).kept


def test_what_cuda_allocates_inside_of_attentions_backward():
    """q's gradient and a number a row in fp32, positions rounded up to 128; of k and v a gradient a query head."""
    at = setup(*WIDE, precision="bf16-mixed")
    B, T128, H, E, T = 2, 128, 8, 8, 24

    def in_attention(on_gpu):
        part = activations.block(at, False, on_gpu=on_gpu)
        return max(bytes_of(p.terms) for p in part.backward if "backward of attention:" in p.name)

    assert in_attention(True) - in_attention(False) == 4 * B * T128 * H * (E + 1) + 2 * (2 * B * T * H * E)


@pytest.mark.parametrize(
    ("card", "precision", "repeats"),
    [("H100-80GB", "fp32", True), ("H100-80GB", "bf16-mixed", False), ("T4", "fp16-mixed", True)],
)
def test_repeated_heads_are_kept_on_a_gpu_without_a_grouped_kernel(card, precision, repeats):
    """Keys and values of K heads become those of H heads: see shardlab.model.repeats_heads."""
    at = replace(setup(*WIDE, precision=precision), machine=machine(card))
    kept = [bytes_of(activations.block(at, False, on_gpu=on_gpu).kept) for on_gpu in (False, True)]
    B, T, H, K, E = 2, 24, 8, 2, 8
    assert kept[1] - kept[0] == (2 * at.strategy.bytes.compute * B * T * (H - K) * E if repeats else 0)


@RECOMPUTE
@PRECISION
def test_a_block_that_repeats_heads(precision, recompute, monkeypatch):
    """As a GPU's model does without a kernel for grouped queries; made to do it on a CPU, and counted to the byte."""
    at = setup(*WIDE, precision=precision, recompute=recompute)
    at = replace(at, machine=replace(at.machine, gpu=replace(at.machine.gpu, capability=(0, 1))))  # no other test's
    for module in (model_file, planned_model):
        monkeypatch.setattr(module, "repeats_heads", lambda *_: True)
    assert measure_block(at) == predict_block(at)


def test_positions_split_over_ranks():
    """All but the keys and values of the others is divided by the number of ranks."""
    whole, split = (activations.block(setup(*WIDE, context=c), False) for c in (1, 2))
    assert 2 * bytes_of(split.kept) == bytes_of(whole.kept)


@pytest.mark.parametrize("loss", ["chunked", "fused"])
@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("shape", ["wide", "odd"])
def test_a_loss_that_never_has_all_logits(shape, precision, lora_rank, loss):
    """Within 1%: beside the logits there are indices and scalars of a few bytes a token."""
    at = setup(*SHAPES[shape], precision=precision, lora_rank=lora_rank, cross_entropy=loss, cross_entropy_chunks=3)
    assert_close(measure_head(at), predict_root(activations.head, at))


def assert_close(found: Bytes, expected: Bytes, rel: float = 0.01) -> None:
    assert astuple(expected) == pytest.approx(astuple(found), rel=rel)


def test_a_loss_that_writes_over_the_logits():
    at = setup(*WIDE, precision="bf16-mixed", cross_entropy="in-place")
    assert measure_head(at) == predict_root(activations.head, at)


class InPlace(torch.autograd.Function):
    """What flash-attention's kernel allocates: a number a row in forward, nothing in backward."""

    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits, torch.zeros(logits.shape[:2]))
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0].detach()  # an operation, by which the tracker sees that backward has begun


# torch.compile


@pytest.mark.night
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("flags", [{}, OTHERS["GPT-2"]], ids=["Llama", "GPT-2"])
def test_what_a_compiled_block_keeps(flags, precision):
    """What Inductor's partitioner hands over to backward, to the byte."""
    at = setup(*WIDE, precision=precision, compile=True, flags=flags)
    block = _initialised(real_block(at), precision)
    angles = rotary_angles(at.strategy.seq_len, at.shape.head_dim, 1e4, torch.device("cpu"))
    x = torch.randn(*_form(at), dtype=_dtype(precision), requires_grad=True)
    compiled = torch.compile(block, backend="aot_eager_decomp_partition", fullgraph=True)
    found = bytes_saved(lambda: compiled(x, *angles), but=[*block.parameters(), *angles])
    assert found == bytes_of(activations.block(at, False).kept)


@pytest.mark.night
def test_the_fullest_moment_of_a_compiled_block():
    """Of Inductor's own code, within 5%: what its allocations come to, parameters' gradients among them."""
    at = setup(*WIDE, compile=True)
    block = _initialised(real_block(at), "fp32")
    angles = rotary_angles(at.strategy.seq_len, at.shape.head_dim, 1e4, torch.device("cpu"))
    x = torch.randn(*_form(at), requires_grad=True)
    compiled = torch.compile(block, fullgraph=True)
    compiled(x, *angles).sum().backward()
    block.zero_grad()
    x.grad = None
    with profile(profile_memory=True) as p:
        gradient = torch.randn(_form(at))
        compiled(x, *angles).backward(gradient)
    changes = (event.nbytes() for event in p.profiler.kineto_results.events() if event.name() == "[memory]")
    part = activations.block(at, False)
    found = max(accumulate(changes)) + x.nbytes - gradient.nbytes  # our part has either x or its result
    gradients = at.shape.block()
    assert found == pytest.approx(predicted(part, gradients, 4).backward, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_what_a_compiled_head_keeps(precision):
    at = setup(*WIDE, precision=precision, compile=True, cross_entropy="compiled")
    head = _initialised(
        nn.ModuleList([norm_of(at.shape), nn.Linear(at.shape.dim, at.shape.vocab_size, bias=False)]), precision
    )
    targets = torch.zeros(_form(at)[:2], dtype=torch.int64)
    x = torch.randn(*_form(at), dtype=_dtype(precision), requires_grad=True)
    compiled = torch.compile(_loss, backend="aot_eager_decomp_partition", fullgraph=True)
    found = bytes_saved(lambda: compiled(head, x, targets, at), but=[*head.parameters(), targets])
    loss = 4  # which its caller has
    assert found + loss == bytes_of(activations.head(at).kept)


def bytes_saved(run, but) -> int:
    """Of distinct storages that autograd saves, `but` for those of these tensors."""
    not_counted = {t.untyped_storage().data_ptr() for t in but}
    saved = {}

    def pack(t):
        for plain in plain_tensors(t):
            saved[plain.untyped_storage().data_ptr()] = plain.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        result = run()
    assert result.requires_grad
    return sum(n_bytes for at, n_bytes in saved.items() if at not in not_counted)


def _form(at: Setup) -> tuple[int, int, int]:
    return at.strategy.micro_batch, at.strategy.seq_len, at.shape.dim


# Published formulas


def gpt(batch: int, positions: int, **strategy) -> Setup:
    config = ModelConfig(1000, 64, 1, 8, 8, 4 * 64, positions)
    flags = OTHERS["GPT-2"] | {"learned_positions": positions}
    return setup(config, batch, positions, precision="bf16-mixed", flags=flags, **strategy)


def kept_by_a_gpt_block(**strategy) -> tuple[int, int, int]:
    """Bytes; s b h and a s^2 b. Without the statistics of LayerNorm (a s b and s b), which the formulas leave out."""
    b, s, a, h = 3, 24, 8, 64
    part = activations.block(gpt(b, s, **strategy), False)
    small = ("mean", "deviation", "logsumexp")
    return bytes_of(t for t in part.kept if not any(word in t.words for word in small)), s * b * h, a * s * s * b


def test_korthikanti_without_dropout():
    """s b h (34 + 5 a s / h) less the masks of two dropouts (1 byte each) is 32 s b h, where no scores are kept."""
    kept, sbh, _ = kept_by_a_gpt_block()
    assert kept == (34 - 2) * sbh


def test_korthikanti_with_scores():
    """Their 5 a s^2 b: softmax's result, a dropout's mask and its result. torch's composed attention has one tensor,
    in fp32, and keeps q, k and v in fp32 as well: 12 s b h for their 6.
    """
    kept, sbh, a_ssb = kept_by_a_gpt_block(attention="math")
    assert kept == (34 - 2 - 6 + 12) * sbh + 4 * a_ssb


def test_korthikanti_with_tensor_parallelism():
    """Their equations 2 and 4, without dropout: s b h (10 - 2 + 24 / t), and 32 s b h / t if sequences are split, too,
    and gathered again. DTensor keeps what it gathered: the inputs of two products, 4 s b h, are whole.
    """
    kept, sbh, _ = kept_by_a_gpt_block(tensor=4, sequence_parallel=False)
    assert kept == (10 - 2 + 24 / 4) * sbh
    kept, sbh, _ = kept_by_a_gpt_block(tensor=4, gather_again=True)
    assert kept == 32 / 4 * sbh
    kept, sbh, _ = kept_by_a_gpt_block(tensor=4)
    assert kept == (28 / 4 + 4) * sbh


# Any shape


@settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_any_shape(data):
    """Of shapes nobody thought of: kept to the byte, the fullest points within 1%."""

    def draw(least, most):
        return data.draw(st.integers(least, most))

    n_kv_heads, head_dim = draw(1, 3), 2 * draw(1, 6)
    n_heads = n_kv_heads * draw(1, 3)
    config = ModelConfig(draw(2, 300), n_heads * head_dim, 1, n_heads, n_kv_heads, draw(1, 200), 64)
    choices = {
        "precision": ["fp32", "bf16-mixed", "bf16-autocast"],
        "recompute": ["none", "full", "selective", "products"],
    }
    at = setup(config, draw(1, 3), draw(1, 40), **{name: data.draw(st.sampled_from(v)) for name, v in choices.items()})
    for found, expected in (
        (measure_block(at), predict_block(at)),
        (measure_head(at), predict_root(activations.head, at)),
    ):
        assert found.kept == expected.kept
        assert_close(found, expected)


# Across ranks


@pytest.mark.night
def test_a_block_split_by_dtensor():
    """Tensor and sequence parallelism over two ranks: what a rank keeps, within the statistics of a row."""
    at = setup(*WIDE, tensor=2)
    found = launch(lambda: kept_under_dtensor(at), 2)
    expected = bytes_of(activations.block(at, False).kept)
    assert found == [expected, expected]


def kept_under_dtensor(at: Setup) -> int:
    mesh = init_device_mesh("cpu", (2,))
    block = _initialised(real_block(at), "fp32")
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
    plan |= {f"{name}_norm": SequenceParallel() for name in ("attention", "feed_forward")}
    plan |= {
        name: PrepareModuleInput(input_layouts=layouts, desired_input_layouts=wanted)
        for name, layouts, wanted in (
            ("attention", (Shard(1), None, None), (Replicate(), None, None)),
            ("feed_forward", (Shard(1),), (Replicate(),)),
        )
    }
    plan |= {
        name: RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
        for name in ("attention.out", "feed_forward.down")
    }
    parallelize_module(block, mesh, plan)
    angles = rotary_angles(at.strategy.seq_len, at.shape.head_dim, 1e4, torch.device("cpu"))
    x = distribute_tensor(torch.randn(*_form(at)), mesh, [Shard(1)]).requires_grad_()
    parameters = [p.to_local() for p in block.parameters()]
    return bytes_saved(lambda: block(x, *angles), but=[*parameters, *angles])
