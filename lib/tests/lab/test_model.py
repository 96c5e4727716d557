"""The model is the published one: sizes, rotary positions, causality, grouped queries, norm, init, tied weights."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardlab import model as model_file
from shardlab.model import (
    PRESETS,
    Attention,
    ModelConfig,
    RMSNorm,
    Transformer,
    preset,
    repeats_heads,
    rotary_angles,
    rotate,
)

SMALL = ModelConfig(vocab_size=50, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=48, max_seq_len=64)

# Llama 3.1 8B, 70B, 405B and Llama 3.2 1B: total parameters as their checkpoints' index files give them.
PUBLISHED = {"8B": 8_030_261_248, "70B": 70_553_706_496, "405B": 405_853_388_800, "1B": 1_235_814_400}


@pytest.mark.parametrize("name", PRESETS)
def test_number_of_parameters(name):
    with torch.device("meta"):
        m = Transformer(preset(name))
    n = sum(p.numel() for p in m.parameters())
    assert n == m.config.n_params == PUBLISHED.get(name, n)
    assert all(p.is_meta for p in m.parameters()), "nothing was allocated"
    if name not in PUBLISHED:
        millions = float(name.removesuffix("M"))
        assert n / 1e6 == pytest.approx(millions, rel=0.15), "a preset is about as large as its name says"


def test_from_the_meta_device_to_the_same_weights():
    with torch.device("meta"):
        m = Transformer(SMALL)
    m.to_empty(device="cpu")
    direct = Transformer(SMALL)
    for each in (m, direct):
        torch.manual_seed(0)
        each.init_weights()
    assert all(map(torch.equal, m.parameters(), direct.parameters()))
    assert not list(m.buffers()), "a buffer would be left empty by to_empty"


def test_init_is_0_02_with_a_scaled_residual_path():
    """GPT-2 (Radford et al. 2019, section 2.3): what adds to the residual stream starts smaller by sqrt(2 n_layers)."""
    torch.manual_seed(0)
    m = Transformer(preset("1M"))
    for name, p in m.named_parameters():
        if p.ndim == 1:
            assert torch.equal(p, torch.ones_like(p)), name
            continue
        into_residual = name.endswith(("out.weight", "down.weight"))
        expected = 0.02 / 8**0.5 if into_residual else 0.02
        assert p.std().item() == pytest.approx(expected, rel=0.03), name
        assert abs(p.mean().item()) < 5 * expected / p.numel() ** 0.5, name


def test_a_new_model_knows_nothing():
    """Logits near 0, so that the loss is that of a uniform guess."""
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 64))
    loss = Transformer(preset("1M"))(tokens, tokens.roll(-1, 1)).item()
    assert loss == pytest.approx(torch.tensor(256.0).log().item(), rel=0.02)


def test_loss_is_the_mean_cross_entropy_of_the_logits():
    m = Transformer(SMALL)
    tokens, targets = torch.randint(50, (2, 3, 16))
    expected = nn.functional.cross_entropy(m(tokens).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(m(tokens, targets), expected)


def test_rotation_keeps_lengths_and_inner_products_depend_on_distance_alone():
    """Su et al. 2021, equation 11: <R_m q, R_n k> is a function of m - n."""
    torch.manual_seed(0)
    cos, sin = (t.double() for t in rotary_angles(64, 16, 500_000.0, torch.device("cpu")))
    q, k = torch.randn(2, 16)

    def at(x, position):
        return rotate(x.view(1, 1, 1, 16), cos[position : position + 1], sin[position : position + 1]).flatten()

    for distance in (0, 1, 7, 30):
        products = torch.stack([at(q, p + distance) @ at(k, p) for p in range(0, 64 - distance, 3)])
        torch.testing.assert_close(products, products[:1].expand_as(products), atol=1e-4, rtol=0)
    torch.testing.assert_close(at(q, 63).norm(), q.norm())
    torch.testing.assert_close(at(q, 0), q)


def test_rotation_turns_as_fast_as_the_formula_says():
    """Pair i of position p by the angle p * theta ** (-2 i / width)."""
    cos, sin = rotary_angles(10, 8, 100.0, torch.device("cpu"))
    for position in range(10):
        angles = torch.tensor([position * 100.0 ** (-2 * i / 8) for i in range(4)])
        torch.testing.assert_close(cos[position], angles.cos())
        torch.testing.assert_close(sin[position], angles.sin())


def test_attention_depends_on_relative_position_only():
    """All positions shifted by the same amount: the same output."""
    torch.manual_seed(0)
    attention = Attention(SMALL)
    x = torch.randn(2, 10, 32)
    cos, sin = rotary_angles(64, SMALL.head_dim, SMALL.rope_theta, torch.device("cpu"))
    here, there = (attention(x, cos[s : s + 10], sin[s : s + 10]) for s in (0, 50))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)
    stretched = attention(x, cos[0:20:2], sin[0:20:2])
    assert not torch.allclose(here, stretched, atol=1e-4), "other distances do matter"


@pytest.mark.parametrize("position", [0, 7, 15])
def test_causality(position):
    """A token changes the logits at its own position and after it, and none before."""
    torch.manual_seed(0)
    m = Transformer(SMALL)
    tokens = torch.randint(50, (1, 16))
    changed = tokens.clone()
    changed[0, position] = (tokens[0, position] + 1) % 50
    difference = (m(tokens) - m(changed)).abs().amax(dim=(0, 2))
    assert difference[:position].eq(0).all()
    assert difference[position:].gt(0).all()


def test_grouped_queries_equal_full_attention_with_repeated_keys_and_values():
    """Ainslie et al. 2023: heads g * H/K to (g + 1) * H/K - 1 share key and value head g."""
    torch.manual_seed(0)
    grouped = Attention(SMALL)
    full = Attention(ModelConfig(50, 32, 2, n_heads=4, n_kv_heads=4, hidden_dim=48, max_seq_len=64))
    repeat = SMALL.n_heads // SMALL.n_kv_heads
    state = grouped.state_dict()
    for name in ("key.weight", "value.weight"):
        heads = state[name].view(SMALL.n_kv_heads, SMALL.head_dim, SMALL.dim)
        state[name] = heads.repeat_interleave(repeat, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    x, angles = torch.randn(2, 10, 32), rotary_angles(10, SMALL.head_dim, SMALL.rope_theta, torch.device("cpu"))
    torch.testing.assert_close(grouped(x, *angles), full(x, *angles))


@pytest.mark.parametrize(
    ("device_type", "dtype", "capability", "repeats"),
    [
        ("cuda", torch.float32, (9, 0), True),  # flash needs 16 bits; the memory-efficient kernel, equal heads
        ("cuda", torch.float16, (7, 5), True),  # a T4 has no flash
        ("cuda", torch.bfloat16, (7, 5), True),
        ("cuda", torch.bfloat16, (8, 0), False),
        ("cuda", torch.float16, (8, 9), False),
        ("cuda", torch.bfloat16, (10, 0), False),
        ("cpu", torch.float32, (0, 0), False),
        ("cpu", torch.bfloat16, (0, 0), False),
    ],
)
def test_heads_are_repeated_where_no_fused_kernel_takes_fewer_of_keys(device_type, dtype, capability, repeats):
    assert repeats_heads(device_type, dtype, capability) == repeats


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_repeated_heads_give_the_same_results_and_gradients(backend, monkeypatch):
    """On a CPU, whose fused kernel takes both. Repeated, attention sees as many heads of keys as of queries."""
    seen, fused = [], nn.functional.scaled_dot_product_attention

    def watched(q, k, v, **options):
        seen.append((q.shape[1], k.shape[1], v.shape[1], options["enable_gqa"]))
        return fused(q, k, v, **options)

    monkeypatch.setattr(model_file.F, "scaled_dot_product_attention", watched)
    tokens = torch.randint(50, (2, 3, 16))
    found = []
    for repeats in (False, True):
        monkeypatch.setattr(model_file, "repeats_heads", lambda *_, repeats=repeats: repeats)
        torch.manual_seed(0)
        m = Transformer(SMALL)
        with sdpa_kernel(backend):
            loss = m(*tokens)
        loss.backward()
        found.append([loss, *(p.grad for p in m.parameters())])
    torch.testing.assert_close(found[1], found[0])
    assert set(seen) == {(4, 2, 2, True), (4, 4, 4, False)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_equals_torchs(dtype):
    torch.manual_seed(0)
    ours, theirs = RMSNorm(24, 1e-5), nn.RMSNorm(24, eps=1e-5)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.copy_(torch.randn(24)))
    x = (3 * torch.randn(5, 7, 24)).to(dtype)
    ours, theirs = ours.to(dtype), theirs.to(dtype)
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours(x).dtype == dtype


def test_tied_weights_are_one_parameter():
    m = Transformer(preset("1M", tied=True))
    names = [name for name, _ in m.named_parameters()]
    assert m.output.weight is m.embedding.weight
    assert "output.weight" not in names
    assert m.config.n_params == preset("1M").n_params - 256 * 128
    m(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert m.output.weight.grad is m.embedding.weight.grad


def test_parameters_stand_in_the_order_in_which_forward_uses_them():
    """What bucketing relies on: gradients come in reversed order (within attention, autograd may choose)."""
    m = Transformer(SMALL)
    came = []
    for name, p in m.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name.rsplit(".", 2)[0]))
    m(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert came == [name.rsplit(".", 2)[0] for name, _ in reversed(list(m.named_parameters()))]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 30}, "dim=30 must be n_heads=4 times"),
        ({"dim": 12}, "an even head width"),
        ({"n_kv_heads": 3}, "n_heads=4 must be a multiple of n_kv_heads=3"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        preset("1M", **changes)


def test_unknown_presets_and_sequences_that_are_too_long_are_named():
    with pytest.raises(ValueError, match="no model preset '2M'; there are 1M, 3M"):
        preset("2M")
    with pytest.raises(ValueError, match="65 positions, but .* max_seq_len=64"):
        Transformer(SMALL)(torch.zeros(1, 65, dtype=torch.long))


def test_the_model_file_knows_nothing_of_parallel_training():
    tree = ast.parse(Path(model_file.__file__).read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"dataclasses", "torch", "torch.nn.functional"}
