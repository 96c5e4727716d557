"""A config's fields: none is passed over, and one that a file leaves out has the default of its own class."""

import json
import warnings

import pytest

from shardplan.config_classes import CLASSES
from shardplan.config_fields import ConfigWarning
from shardplan.huggingface import FAMILIES, shape_of_config
from shardplan.models import shape_of

# Parameters of models whose sizes are the defaults of their class, so that `model_type` alone describes them.
DEFAULTS = {
    "llama": 6_738_415_616,  # Llama 7B
    "mistral": 7_241_732_096,  # Mistral 7B
    "gemma": 8_537_680_896,  # Gemma 7B: 16 heads of 256, where hidden_size / num_attention_heads is 192
    "phi3": 3_821_079_552,  # Phi-3 mini
    "starcoder2": 3_030_371_328,  # StarCoder2 3B
    "gpt2": 124_439_808,
    "gpt_neox": 20_554_567_680,  # GPT-NeoX-20B
    "opt": 125_239_296,  # OPT-125m
    # no published model has these sizes: embedding and output, then blocks, then the last norm
    "qwen2": 2 * 151_936 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 + 3 * 4096 * 22_016 + 2 * 4096) + 4096,
    "qwen3": 2 * 151_936 * 4096 + 32 * (4 * 4096**2 + 2 * 128 + 3 * 4096 * 22_016 + 2 * 4096) + 4096,
    "olmo2": 2 * 50_304 * 4096 + 32 * (4 * 4096**2 + 2 * 4096 + 3 * 4096 * 11_008 + 2 * 4096) + 4096,
    "gemma3_text": 262_208 * 2304
    + 26 * (2 * 2048 * 2304 + 2 * 1024 * 2304 + 2 * 256 + 3 * 2304 * 9216 + 4 * 2304)
    + 2304,
    # mixtures: published; and attention, router, 3 matrices of each expert and of the shared ones, norms
    "mixtral": 46_702_792_704,
    "deepseek_v3": 671_026_419_200,
    "gpt_oss": 116_829_156_672,
    "qwen3_moe": 2 * 151_936 * 2048
    + 24 * (2 * 2048**2 + 2 * 256 * 2048 + 128 * (2048 + 3 * 2048 * 768) + 2 * 2048 + 2 * 64)
    + 2048,
    "glm4_moe": 2 * 151_552 * 4096
    + 46 * (2 * 12_288 * 4096 + 2 * 1024 * 4096 + 2 * 4096)
    + 45 * (128 * (4096 + 1) + 129 * 3 * 4096 * 1408)
    + 3 * 4096 * 10_944
    + 4096,
    "llama4_text": 2 * 202_048 * 5120
    + 48 * (2 * 5120**2 + 2 * 1024 * 5120 + 16 * 5120 + 17 * 3 * 5120 * 8192 + 2 * 5120)
    + 5120,
    "mpt": 50_368 * 2048 + 24 * (12 * 2048**2 + 2 * 2048) + 2048,
}

QWEN3_0_6B = {"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
QWEN3_0_6B |= {"model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True}
STARCODER2_15B = {"model_type": "starcoder2", "hidden_size": 6144, "intermediate_size": 24_576, "mlp_type": "default"}
STARCODER2_15B |= {"num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 4, "use_bias": True}
PHI_4 = {"model_type": "phi3", "vocab_size": 100_352, "hidden_size": 5120, "intermediate_size": 17_920}
PHI_4 |= {"num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, "attention_bias": False}
PHI_4_MINI = {"model_type": "phi3", "vocab_size": 200_064, "num_attention_heads": 24, "num_key_value_heads": 8}
PHI_4_MINI |= {"tie_word_embeddings": True, "partial_rotary_factor": 0.75, "lm_head_bias": False, "full_attn_mod": 1}
GPT2_ALIASES = {"model_type": "gpt2", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
MPT_7B = {"model_type": "mpt", "vocab_size": 50_432, "d_model": 4096, "n_layers": 32, "n_heads": 32}

# What a field changes, each as a config, and its parameters: a published number, or one with the difference beside it.
CHANGES = {
    # an output layer of its own: a matrix as large as the embedding
    "gpt2 untied": ({"model_type": "gpt2", "tie_word_embeddings": False}, 124_439_808 + 50_257 * 768),
    "opt untied": ({"model_type": "opt", "tie_word_embeddings": False}, 125_239_296 + 50_272 * 768),
    "mpt untied": (MPT_7B | {"tie_word_embeddings": False}, 6_649_286_656 + 50_432 * 4096),
    "neox tied": ({"model_type": "gpt_neox", "tie_word_embeddings": True}, 20_554_567_680 - 50_432 * 6144),
    "gemma untied": ({"model_type": "gemma", "tie_word_embeddings": False}, 8_537_680_896 + 256_000 * 3072),
    "starcoder2 15B": (STARCODER2_15B | {"tie_word_embeddings": False}, 15_957_889_024),
    "phi-4": (PHI_4, 14_659_507_200),
    "phi-4-mini": (PHI_4_MINI, 3_836_021_760),
    # the class's heads and their width, where the file has none
    "qwen3 0.6B without head_dim": (QWEN3_0_6B, 596_049_920),  # 16 heads of 128, in a width of 1024
    "mistral with as many key heads": (
        {"model_type": "mistral", "num_key_value_heads": None},
        7_241_732_096 + 32 * 2 * (32 - 8) * 128 * 4096,
    ),
    # biases
    "llama with biases": (
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        6_738_415_616 + 32 * (4 * 4096 + 2 * 11_008 + 4096),
    ),
    "opt without": ({"model_type": "opt", "enable_bias": False}, 125_239_296 - 12 * (4 * 768 + 3072 + 768)),
    "starcoder2 without": (
        {"model_type": "starcoder2", "use_bias": False},
        3_030_371_328 - 30 * (3072 + 2 * 256 + 3072 + 12_288 + 3072),
    ),
    # other names of the same fields
    "gpt2-medium in other names": (GPT2_ALIASES, 354_823_168),
    "gpt2 with a wide feed-forward": ({"model_type": "gpt2", "n_inner": 4096}, 124_439_808 + 12 * 1024 * (2 * 768 + 1)),
    # MPT's parts
    "mpt, one key head": (
        MPT_7B | {"attn_config": {"attn_type": "multiquery_attention"}},
        6_649_286_656 - 32 * 2 * 31 * 128 * 4096,
    ),
    "mpt, eight key heads": (
        MPT_7B | {"attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}},
        6_649_286_656 - 32 * 2 * 24 * 128 * 4096,
    ),
    "mpt, a wide feed-forward": (MPT_7B | {"expansion_ratio": 5.5}, 6_649_286_656 + 32 * 2 * 4096 * 6144),
}

REFUSED = {
    "a bias without the other": ({"model_type": "llama", "mlp_bias": True}, "attention_bias=False"),
    "a bias that the class has not": ({"model_type": "mistral", "attention_bias": True}, "attention_bias=True"),
    "a bias that the class always has": ({"model_type": "qwen2", "attention_bias": False}, "attention_bias=False"),
    "a bias of the output": ({"model_type": "phi3", "lm_head_bias": True}, "lm_head_bias=True"),
    "a gated feed-forward": ({"model_type": "starcoder2", "mlp_type": "gated"}, "mlp_type='gated'"),
    "another norm": ({"model_type": "starcoder2", "norm_type": "rms_norm"}, "norm_type='rms_norm'"),
    "cross attention": ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=True"),
    "heads that are gone": ({"model_type": "gpt2", "pruned_heads": {"0": [1]}}, "pruned_heads="),
    "layers without attention": ({"model_type": "qwen3", "layer_types": ["linear_attention"]}, "layer_types="),
    "OPT-350m": ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim=512"),
    "no last norm": ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before=False"),
    "no last norm, old": ({"model_type": "opt", "_remove_final_layer_norm": True}, "_remove_final_layer_norm=True"),
    "norms without weights": ({"model_type": "opt", "layer_norm_elementwise_affine": False}, "elementwise_affine"),
    "norms of queries": (MPT_7B | {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln=True"),
    "a gate": (MPT_7B | {"ffn_config": {"ffn_type": "mptglu"}}, "ffn_config.ffn_type='mptglu'"),
    "a norm of MPT": (MPT_7B | {"norm_type": "triton_rmsnorm"}, "norm_type='triton_rmsnorm'"),
    "heads that contradict": (MPT_7B | {"attn_config": {"kv_n_heads": 8}}, "attn_config.kv_n_heads=8"),
    "a part that is none": (MPT_7B | {"attn_config": "alibi"}, "attn_config='alibi'"),
    "two names, two values": ({"model_type": "gpt2", "n_embd": 768, "hidden_size": 1024}, "hidden_size=1024"),
    "a word for a flag": ({"model_type": "gpt2", "tie_word_embeddings": "false"}, "tie_word_embeddings='false'"),
    "a misspelt size": ({"model_type": "llama", "num_hidden_layer": 16}, "no 'num_hidden_layers'"),
    "a misspelt flag": ({"model_type": "llama", "tie_embeddings": True}, "no 'tie_word_embeddings'"),
    "a size that is null": ({"model_type": "llama", "hidden_size": None}, "hidden_size=None"),
    "a model_type that is a list": ({"model_type": ["llama"]}, "model_type=['llama']"),
}

# The text_config of published models with several parts, as their files have it, and the text model's parameters.
LLAVA = {"model_type": "llama", "vocab_size": 32_064, "_name_or_path": "lmsys/vicuna-7b-v1.5", "torch_dtype": "float16"}
LLAVA |= {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "rms_norm_eps": 1e-05}
PIXTRAL = {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40}
PIXTRAL |= {"is_composition": True, "max_position_embeddings": 1_024_000, "rms_norm_eps": 1e-05, "rope_theta": 1e9}
PIXTRAL |= {"sliding_window": None, "vocab_size": 131_072}
PALIGEMMA = {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16_384}
PALIGEMMA |= {"num_attention_heads": 8, "num_key_value_heads": 1, "num_image_tokens": 256, "vocab_size": 257_216}
TEXT_CONFIGS = {
    "llava": (LLAVA, 6_738_415_616 + 2 * 64 * 4096),  # Vicuna 7B, and 64 tokens more
    "llava, 13B": (
        LLAVA
        | {"hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 40}
        | {"num_attention_heads": 40, "num_key_value_heads": 40},
        13_015_864_320 + 2 * 64 * 5120,
    ),
    "pixtral": (PIXTRAL, 12_247_782_400),  # Mistral Nemo 12B
    "paligemma": (PALIGEMMA, 2_506_172_416 + 1216 * 2048),  # Gemma 2B, and 1,216 tokens more
}


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_field_has_the_default_of_its_class(family):
    assert shape_of_config(_nested(family, {}), "it").n_params == DEFAULTS[family]


@pytest.mark.parametrize("change", CHANGES)
def test_a_field_that_changes_shapes_is_read(change):
    config, n_params = CHANGES[change]
    assert shape_of_config(config, "it").n_params == n_params


@pytest.mark.parametrize("name", TEXT_CONFIGS)
def test_the_text_config_of_a_model_with_several_parts_can_be_planned_as_advised(name, tmp_path):
    config, n_params = TEXT_CONFIGS[name]
    with pytest.raises(ValueError, match=r"save its 'text_config' as a config.json of its own and plan that"):
        shape_of_config({"model_type": "llava", "text_config": config, "vision_config": {}}, "it")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(str(tmp_path)).n_params == n_params


def test_the_advice_on_a_text_config_names_what_to_add():
    for whole, kind in {"llava": "llama", "paligemma": "gemma", "mistral3": "mistral"}.items():
        with pytest.raises(ValueError, match=f'with "model_type": "{kind}" added'):
            shape_of_config({"model_type": whole, "text_config": {"vocab_size": 32_064}}, "it")
    with pytest.raises(ValueError, match="model_type='mllama_text_model', which is not known either; known are llama"):
        shape_of_config({"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}}, "it")


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_planned_is_refused_by_field(case):
    config, complaint = REFUSED[case]
    with pytest.raises(ValueError, match=r"^model='it'") as error:
        shape_of_config(config, "it")
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("family", "field"), [(family, field) for family, kind in CLASSES.items() for field in kind.defaults]
)
def test_each_field_that_a_class_lists_is_really_read(family, field):
    """Another value changes the shape or is refused."""
    default = CLASSES[family].defaults[field]
    base = {"attn_config.alibi": False} if field in ("learned_pos_emb", "attn_config.rope") else {}
    if field == "sliding_window" and "use_sliding_window" in CLASSES[family].defaults:
        base = {"use_sliding_window": True}
    before = shape_of_config(_nested(family, base), "it")
    for other in (
        (not default,) if isinstance(default, bool) else ("none",) if isinstance(default, str) else {3, 25} - {default}
    ):
        try:
            assert shape_of_config(_nested(family, base | {field: other}), "it") != before
        except ValueError as error:
            assert "model='it'" in str(error)


def _nested(family: str, fields: dict) -> dict:
    config: dict = {"model_type": family, "attn_config": {}}
    if family == "glm4_moe":
        config["head_dim"] = 128  # its files give it; by default 96 heads do not divide 4,096
    for field, value in fields.items():
        part, _, inner = field.rpartition(".")
        (config[part] if part else config)[inner] = value
    return {field: value for field, value in config.items() if value != {}}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", [True, False, 7, 0.5, "post", [1], {"a": 1}])
def test_an_unknown_field_is_named_with_its_value(family, value):
    with pytest.warns(ConfigWarning, match="model='it': the planner ignores conv_width=") as said:
        shape = shape_of_config(_nested(family, {"conv_width": value}), "it")
    assert f"conv_width={value!r}" in str(said[0].message) and len(said) == 1
    assert shape == shape_of_config(_nested(family, {"conv_width": None}), "it")


def test_an_unknown_field_of_a_part_is_named():
    with pytest.warns(ConfigWarning, match=r"attn_config\.conv_width=7"):
        shape_of_config(MPT_7B | {"attn_config": {"conv_width": 7}}, "it")


def test_another_head_than_the_language_models_is_told():
    for known in ("LlamaForCausalLM", "LLaMAForCausalLM", "GPT2LMHeadModel"):
        shape_of_config({"model_type": "llama", "architectures": [known]}, "it")
    with pytest.warns(ConfigWarning, match="LlamaForSequenceClassification.*for the language model"):
        shape_of_config({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "it")


# Fields of published files that change no shape.
QUIET = {
    "llama": {"pretraining_tp": 1, "rope_scaling": {"rope_type": "llama3"}, "transformers_version": "4.43.0",
              "eos_token_id": [128_001, 128_008], "use_cache": True, "hidden_act": "silu", "max_sequence_length": 2048,
              "is_llama_config": True, "rope_interleaved": False, "initializer_range": 0.02, "quantization_config": {},
              "transformers.js_config": {"dtype": "q4"}, "_attn_implementation_autoset": True},
    "qwen2": {"max_window_layers": 28, "use_sliding_window": False, "sliding_window": 131_072, "use_mrope": False,
              "layer_types": ["full_attention", "sliding_attention"]},
    "gemma": {"hidden_activation": None, "auto_map": {}, "dtype": "bfloat16", "rope_parameters": {"rope_theta": 1e4}},
    "phi3": {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096, "interpolate_factor": 1},
    "gpt2": {"n_ctx": 1024, "summary_use_proj": True, "summary_first_dropout": 0.1, "layer_norm_epsilon": 1e-5,
             "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10_000, "classifier_dropout": 0.1,
                 "use_parallel_residual": False},
    "opt": {"activation_dropout": 0.0, "activation_function": "relu", "layerdrop": 0.0, "init_std": 0.02,
            "prefix": "</s>", "do_layer_norm_before": True, "_remove_final_layer_norm": False},
    "mpt": {"attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "qk_ln": False,
                            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
                            "prefix_lm": False, "softmax_scale": None},
            "init_config": {"name": "kaiming_normal_"}, "init_device": "cpu", "logit_scale": None, "verbose": 0,
            "tokenizer_name": "EleutherAI/gpt-neox-20b", "embedding_fraction": 1.0,
            "norm_type": "low_precision_layernorm"},
}  # fmt: skip


@pytest.mark.parametrize("family", QUIET)
def test_a_published_file_warns_of_nothing(family):
    assert shape_of_config({"model_type": family} | QUIET[family], "it").n_params == DEFAULTS[family]
