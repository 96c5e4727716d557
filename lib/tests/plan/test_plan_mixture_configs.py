"""Configs of mixtures of experts, latent attention and windows: parameters as published, refusals that are true.

The fields are those of each model's public config.json, as far as they are not the defaults of its class.
"""

import pytest

from shardplan.api import setup_of
from shardplan.flops import attention_flops
from shardplan.huggingface import shape_of_config
from shardplan.models import shape_of

QWEN3_30B = {"model_type": "qwen3_moe", "head_dim": 128, "num_hidden_layers": 48, "max_position_embeddings": 40_960}
QWEN3_235B = QWEN3_30B | {"hidden_size": 4096, "intermediate_size": 12_288, "moe_intermediate_size": 1536}
QWEN3_235B |= {"num_attention_heads": 64, "num_hidden_layers": 94}
MIXTRAL_22B = {"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16_384, "num_hidden_layers": 56}
MIXTRAL_22B |= {"num_attention_heads": 48, "vocab_size": 32_768, "max_position_embeddings": 65_536}
GPT_OSS_20B = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "experts_per_token": 4}
GEMMA3_1B = {"model_type": "gemma3_text", "vocab_size": 262_144, "hidden_size": 1152, "intermediate_size": 6912}
GEMMA3_1B |= {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512}
OLMO2_7B = {"model_type": "olmo2", "vocab_size": 100_352, "max_position_embeddings": 4096}
OLMO2_13B = OLMO2_7B | {"hidden_size": 5120, "intermediate_size": 13_824, "num_attention_heads": 40}
OLMO2_13B |= {"num_hidden_layers": 40}
MAVERICK = {"model_type": "llama4_text", "num_local_experts": 128, "interleave_moe_layer_step": 2}

# name: config, parameters in all, parameters that a token uses (None: no figure is published)
PUBLISHED = {
    "Qwen3-30B-A3B": (QWEN3_30B, 30_532_122_624, 3.3e9),
    "Qwen3-235B-A22B": (QWEN3_235B, 235_093_634_560, 22e9),
    "Mixtral-8x7B": ({"model_type": "mixtral"}, 46_702_792_704, 12.9e9),
    "Mixtral-8x22B": (MIXTRAL_22B, 140_630_071_296, 39e9),
    "DeepSeek-V3": ({"model_type": "deepseek_v3"}, 671_026_419_200, 37e9),
    "gpt-oss-20b": (GPT_OSS_20B, 20_914_757_184, None),
    "gpt-oss-120b": ({"model_type": "gpt_oss"}, 116_829_156_672, None),
    "Gemma 3 1B": (GEMMA3_1B, 999_885_952, None),
    "OLMo 2 7B": (OLMO2_7B, 7_298_617_344, None),
    "OLMo 2 13B": (OLMO2_13B, 13_716_198_400, None),
}
# In billions, as their reports round them: text models without encoders of images and without further predictions
ROUNDED = {
    "Llama 4 Scout": ({"model_type": "llama4_text"}, 109, 17),
    "Llama 4 Maverick": (MAVERICK, 400, 17),
    "GLM-4.5-Air": ({"model_type": "glm4_moe", "attention_bias": True, "head_dim": 128}, 106, 12),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_has_the_published_number_of_parameters(name):
    config, in_all, active = PUBLISHED[name]
    shape = shape_of_config(config, name)
    assert shape.n_params == in_all
    assert active is None or shape.active_params == pytest.approx(active, rel=0.025)


@pytest.mark.parametrize("name", ROUNDED)
def test_has_about_the_published_billions(name):
    config, in_all, active = ROUNDED[name]
    shape = shape_of_config(config, name)
    assert shape.n_params == pytest.approx(in_all * 1e9, rel=0.012)
    assert shape.active_params == pytest.approx(active * 1e9, rel=0.12)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (QWEN3_30B, "qwen3-30b-a3b"),
        (QWEN3_235B, "qwen3-235b-a22b"),
        (MIXTRAL_22B, "mixtral-8x22b-v0.1"),
        ({"model_type": "deepseek_v3", "max_position_embeddings": 163_840}, "deepseek-v3"),
        (GPT_OSS_20B, "gpt-oss-20b"),
    ],
    ids=str,
)
def test_a_config_gives_the_model_of_that_name(config, name):
    assert shape_of_config(config, name) == shape_of(name)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5"}, "t5 has an encoder and a decoder, and cross attention is not planned"),
        ({"model_type": "mamba2"}, "mamba2 has layers with a state in the place of attention"),
        ({"model_type": "llama", "num_local_experts": 8}, "model_type='llama' has none; of mixtures .* mixtral"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"model_type": "dots_moe", "n_routed_experts": 8}, "is not known; It is a mixture of experts."),
        ({"model_type": "gemma3", "text_config": GEMMA3_1B}, "save its 'text_config' as a config.json of its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model_type"],
)
def test_is_refused_for_a_reason_that_is_true(config, words):
    with pytest.raises(ValueError, match=words):
        shape_of_config(config, "x")


def test_a_window_makes_attention_cheaper():
    """Gemma 3 1B at 4096: 4 of 26 layers see all, causal T/2; the others 512 less 512^2 / (2 x 4096) on average."""
    gemma = shape_of_config(GEMMA3_1B, "gemma-3-1b")
    at = setup_of(gemma, "dgx-h100", 8, seq_len=4096)
    seen = (4 * 2048 + 22 * (512 - 32)) / 26
    assert attention_flops(at, causal=True) == pytest.approx(4 * 4096 * seen * 4 * 256)
    assert gemma.window == 512 and gemma.full_share == 4 / 26


def test_a_window_of_mistral_is_no_longer_ignored():
    mistral = shape_of_config({"model_type": "mistral", "sliding_window": 4096}, "mistral-7b-v0.1")
    short, long = (setup_of(mistral, "dgx-h100", 8, seq_len=n) for n in (4096, 32_768))
    assert attention_flops(long) / attention_flops(short) == pytest.approx(8)  # per token the same, whatever the length


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, "first_k_dense_replace=3, .* 1 to 2 of the 2 blocks"),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": 61}, "first_k_dense_replace=61, .*, and 0 would"),
        ({"model_type": "glm4_moe", "head_dim": 128, "num_hidden_layers": 1}, "of the 1 blocks must have experts"),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "moe_layers": [0, 1, 2, 3, 4]}, "moe_layers=.*, and 5"),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "moe_layers": []}, "moe_layers=.*, and 0 would"),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 96}, "interleave_moe_layer_step=96, .*, and 0"),
        ({"model_type": "glm4_moe"}, "num_attention_heads=96 must divide hidden_size=4096, or give head_dim"),
    ],
)
def test_a_mixture_has_blocks_with_experts_and_a_head_has_a_width(config, what):
    """transformers' class for GLM-4 rounds a missing head_dim down; a width of 42 is nobody's model."""
    with pytest.raises(ValueError, match=what):
        shape_of_config(config, "it")
