"""Mixtures of experts: parameters, FLOPs, bytes on a rank, and messages."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from test_plan_activations import WIDE, _dtype, _form, _initialised, bytes_of, bytes_saved, setup
from torch import nn

from shardlab.model import RMSNorm, rotary_angles, rotate
from shardplan import activations, flops
from shardplan.api import figures_of, setup_of
from shardplan.memory import memory_plan
from shardplan.models import shape_of
from shardplan.shape import Experts, Latent
from shardplan.speed import speed_plan
from shardplan.stage_parameters import stages
from shardplan.traffic import sends
from shardplan.traffic.model_parallel import copies_share, expert_sends

TINY = Experts(number=8, per_token=2, hidden_dim=32)


class Mixture(nn.Module):
    """As torchtitan's, with equal shares of tokens and a product of batches in the place of a grouped one."""

    def __init__(self, dim: int, e: Experts) -> None:
        super().__init__()
        self.router, self.e = nn.Linear(dim, e.number, bias=False), e
        self.gate, self.up = (nn.Parameter(torch.empty(e.number, dim, e.hidden_dim)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(e.number, e.hidden_dim, dim))
        shared = {"gate": (dim, e.shared_dim), "up": (dim, e.shared_dim), "down": (e.shared_dim, dim)}
        self.shared = nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in shared.items()})

    def forward(self, x):
        rows, z = x.flatten(0, 1), self.e.per_token
        weights, _ = self.router(rows).float().softmax(-1).topk(z)
        order = torch.arange(len(rows) * z)
        sorted_rows = rows[order // z].view(self.e.number, -1, rows.shape[1])
        hidden = nn.functional.silu(sorted_rows @ self.gate) * (sorted_rows @ self.up)
        y = (hidden @ self.down).view(-1, rows.shape[1])[order]
        y = (y.view(len(rows), z, -1) * weights.to(x.dtype).unsqueeze(-1)).sum(1)
        if self.e.shared_dim:
            s = self.shared
            y = y + s["down"](nn.functional.silu(s["gate"](rows)) * s["up"](rows))
        return y.view_as(x)


@pytest.mark.parametrize("shared_dim", [0, 48])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_what_a_mixture_keeps(precision, shared_dim):
    """What autograd saves of the real module, and what the plan says that the block keeps beyond its attention."""
    e = replace(TINY, shared_dim=shared_dim)
    at = setup(*WIDE, precision=precision, flags={"experts": e})
    mixture = _initialised(Mixture(at.shape.dim, e), precision)
    x = torch.randn(*_form(at), dtype=_dtype(precision), requires_grad=True)
    found = bytes_saved(lambda: mixture(x), but=list(mixture.parameters()))
    kept = activations.block(at, False).kept
    names = ("feed_forward_norm's result, B", "gate", "up, M", "up, B", "expert", "token")
    of_mixture = [t for t in kept if any(name in t.words for name in names)]
    assert found == bytes_of(of_mixture)


class LatentAttention(nn.Module):
    """DeepSeek-V3's, from its input to its result, with the course's norms and rotation."""

    def __init__(self, dim: int, heads: int, a: Latent) -> None:
        super().__init__()
        turned, self.heads, self.a = a.plain_dim + a.turned_dim, heads, a
        linear = partial(nn.Linear, bias=False)
        self.query_a, self.query_b = linear(dim, a.query_rank), linear(a.query_rank, heads * turned)
        self.kv_a = linear(dim, a.kv_rank + a.turned_dim)
        self.kv_b = linear(a.kv_rank, heads * (a.plain_dim + a.value_dim))
        self.query_a_norm, self.kv_a_norm = RMSNorm(a.query_rank, 1e-5), RMSNorm(a.kv_rank, 1e-5)
        self.out = linear(heads * a.value_dim, dim)

    def forward(self, x, cos, sin):
        a, heads = self.a, (*x.shape[:2], self.heads, -1)
        q = self.query_b(self.query_a_norm(self.query_a(x))).view(heads)
        q = torch.cat([q[..., : a.plain_dim], rotate(q[..., a.plain_dim :], cos, sin)], -1)
        narrow, turned = self.kv_a(x).split([a.kv_rank, a.turned_dim], -1)
        k, v = self.kv_b(self.kv_a_norm(narrow)).view(heads).split([a.plain_dim, a.value_dim], -1)
        turned = rotate(turned.unsqueeze(2), cos, sin).expand(-1, -1, self.heads, -1)
        q, k, v = (each.transpose(1, 2) for each in (q, torch.cat([k, turned], -1), v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_what_latent_attention_keeps(precision):
    """To the byte; values are a part of one tensor with the keys that are not turned, which is kept whole."""
    a = Latent(query_rank=24, kv_rank=16, plain_dim=8, turned_dim=4, value_dim=12)
    flags = {"latent": a, "n_kv_heads": 8, "head_dim": 12}
    at = setup(*WIDE, precision=precision, flags=flags)
    attention = _initialised(LatentAttention(at.shape.dim, 8, a), precision)
    x = torch.randn(*_form(at), dtype=_dtype(precision), requires_grad=True)
    angles = rotary_angles(24, a.turned_dim, 1e4, torch.device("cpu"))
    found = bytes_saved(lambda: attention(x, *angles), but=[*attention.parameters(), *angles])
    kept = activations.block(at, False).kept
    others = (
        "feed_forward",
        "gate",
        "up, B",
        "residual stream",
        "attention_norm's input",
        "attention_norm's result before",
    )
    others += ("rsqrt(mean + eps)",)
    of_attention = [t for t in kept if not any(name in t.words for name in others)]
    roots = 2 * 4 * 2 * 24  # of the two norms inside: a number a row, in fp32
    assert found == bytes_of(of_attention) + roots


@pytest.mark.parametrize(
    ("degree", "held"),
    [(1, 8 * 3 * 64 * 32), (2, 4 * 3 * 64 * 32), (8, 1 * 3 * 64 * 32)],
)
def test_a_rank_has_its_share_of_the_experts_whatever_the_degree(degree, held):
    """X / e whole experts, shared among N / e ranks: always 1 / N of all. Gathered are the X / e."""
    at = expert_setup(expert=degree)
    (stage,) = stages(at)
    experts = [w for w in stage.block if w.name.startswith("experts.")]
    assert sum(w.numel for w in experts) == held
    assert sum(w.shard_numel(8) for w in experts) == 8 * 3 * 64 * 32 // 8
    unsharded = {
        t.n_bytes for m in memory_plan(at).moments for t in m.terms if t.words.startswith("unsharded parameters")
    }
    others = sum(w.numel for w in stage.block if w not in experts)
    assert 2 * (others + held) in unsharded


def expert_setup(**strategy):
    shape = replace(setup(*WIDE).shape, n_layers=2, experts=replace(TINY, shared_dim=48))
    return setup_of(shape, "dgx-h100", 8, seq_len=64, micro_batch=2, **strategy)


def test_bytes_of_the_all_to_alls():
    """A rank sends 7/8 of its 2 x 64 x 2 rows of 64 numbers, to the experts and back, forward and backward."""
    found = [s for s in sends(expert_setup(expert=8)) if s.kind == "all_to_all"]
    assert sum(s.bytes for s in found) == 4 * 2 * (7 / 8) * (2 * 64 * 2) * 64 * 2  # of two blocks
    assert not [s for s in sends(expert_setup()) if s.kind == "all_to_all"]


def test_rows_that_leave_the_node_are_those_of_the_ranks_on_other_nodes():
    """Of 63 other ranks, 56 are on other nodes. A ring's share, 1/8, would be far too small."""
    (found,) = {s for s in sends(setup_of("deepseek-v3", "dgx-h100", 64, expert=64)) if s.kind == "all_to_all"}
    assert found.bytes_between == pytest.approx(found.bytes * 56 / 63)
    inside = [s for s in sends(setup_of("deepseek-v3", "dgx-h100", 64, expert=8)) if s.kind == "all_to_all"]
    assert inside and not any(s.bytes_between for s in inside)


def test_experts_that_are_not_shared_are_not_sent():
    """With a rank for each expert only the rest is gathered and reduced; with one group for all, everything is."""
    gathered = {}
    for degree in (1, 8):
        at = expert_setup(expert=degree)
        (stage,) = stages(at)
        plain = sum(w.numel for w in stage.weights if not w.name.startswith("experts."))
        experts = sum(w.numel for w in stage.weights) - plain
        of_root = sum(w.numel for w in stage.root)
        gathered[degree] = sum(s.bytes for s in sends(at) if s.kind == "all_gather")
        twice = 2 * plain - of_root + (2 * experts if degree == 1 else 0)
        assert gathered[degree] == pytest.approx(2 * twice * 7 / 8, rel=0.01)
    assert gathered[8] < gathered[1]


def test_flops_are_those_of_the_active_parameters():
    """6 a parameter that multiplies and token, as the dense models' test has it; imbalance is no model FLOP."""
    at = setup_of("qwen3-30b-a3b", "dgx-h100", 8, seq_len=4096)
    s = at.shape
    norms = s.n_layers * (2 * s.dim + 2 * s.head_dim) + s.dim
    multiplied = s.active_params - norms - s.vocab_size * s.dim
    assert flops.model_flops(at) / 4096 == pytest.approx(6 * multiplied + 12 * s.n_layers * s.q_dim * 4096, rel=1e-9)
    uneven = setup_of("qwen3-30b-a3b", "dgx-h100", 8, seq_len=4096, imbalance=1.5)
    assert flops.model_flops(uneven) == flops.model_flops(at)
    assert speed_plan(uneven).step_s > speed_plan(at).step_s
    assert memory_plan(uneven).allocated_bytes > memory_plan(at).allocated_bytes


def test_experts_with_few_tokens_are_slow():
    """A tile has 128 rows: an expert with 16 tokens takes as long as with 128, and reads its weights either way."""
    few, many = (
        speed_plan(setup_of("qwen3-30b-a3b", "dgx-h100", 8, seq_len=n, micro_batch=1)).mfu for n in (256, 2048)
    )
    assert few < 0.4 * many


def test_dense_first_blocks_have_a_feed_forward():
    """DeepSeek-V3's first 3 of 61 blocks: a plan's weights are all of its parameters, on one rank of one."""
    at = setup_of("deepseek-v3", "gb200-nvl72", 72, expert=8, sharding="FULL_SHARD", micro_batch=1)
    (stage,) = stages(at)
    of_experts = sum(w.numel for w in stage.weights if w.spread > 1)
    assert sum(w.numel for w in stage.weights) + 7 * of_experts == 671_026_419_200
    assert figures_of(at).fits in ("yes", "maybe", "no")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"model": "8B", "expert": 2}, "expert=2.*is no mixture of experts.*expert=1"),
        ({"expert": 3}, "expert=3.*must divide the 128 experts.*8 ranks.*expert=2"),
        ({"expert": 8, "sharding": "DDP"}, "sharding='DDP'.*FULL_SHARD"),
        ({"imbalance": 0.5}, "imbalance=0.5.*imbalance=1.0"),
    ],
)
def test_refusals(choices, words):
    model = choices.pop("model", "qwen3-30b-a3b")
    with pytest.raises(ValueError, match=words):
        setup_of(model, "dgx-h100", 8, **choices)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b-v0.1", "deepseek-v3"])
def test_every_parameter_of_a_mixture_gets_a_gradient(name):
    """ZeRO-2 reduces a bucket when the last of its gradients is made: one that never is would keep all others."""
    shape = shape_of(name)
    at = setup_of(replace(shape, n_layers=4), "dgx-h100", 8, sharding="ZERO_2", seq_len=512)
    made = {g for p in activations.block(at, False).backward for g in p.gradients}
    assert made == set(shape.block())
    held = [t for t in memory_plan(at).moments[-1].terms if t.category == "gradients"]
    assert sum(t.n_bytes for t in held) == pytest.approx(4 * at.shape.n_params / 8, rel=0.001)


@pytest.mark.parametrize(("model", "ranks"), [("qwen3-30b-a3b", 8), ("qwen3-30b-a3b", 64), ("gpt-oss-20b", 8)])
def test_a_token_that_is_sent_once_to_a_rank(model, ranks):
    """Beside tokens that choose their experts at random."""
    once, each = (
        setup_of(model, "dgx-h100", 64, expert=ranks, seq_len=4096, once_a_rank=once) for once in (True, False)
    )
    e, draw = once.shape.experts, random.Random(0)
    chosen = [draw.sample(range(e.number), e.per_token) for _ in range(20_000)]
    found = sum(len({expert * ranks // e.number for expert in of}) for of in chosen) / len(chosen)
    assert copies_share(once) * e.per_token == pytest.approx(found, rel=0.01)
    for way in ("forward", "backward"):
        (less,), (all_of_them,) = (expert_sends(at, True)[way] for at in (once, each))
        assert less.full_bytes == pytest.approx(copies_share(once) * all_of_them.full_bytes)
        assert less.times == all_of_them.times
