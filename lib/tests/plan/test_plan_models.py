"""Shapes of public models, to the last parameter, by name and from a Hugging Face config.json."""

import json

import pytest
import test_plan_mixture_configs as mixture_configs
import torch

from shardlab.model import PRESETS, Transformer, preset
from shardplan.huggingface import FAMILIES, shape_of_config
from shardplan.models import MODELS, shape_of
from shardplan.shape import Shape

# The number of parameters that each model's card, paper or checkpoint states. gpt3's and opt-66b's are only rounded.
PUBLISHED = {
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "mixtral-8x22b-v0.1": 140_630_071_296,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "phi-3-mini": 3_821_079_552,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "mpt-7b": 6_649_286_656,
}
NAMED = {"gpt3-6.7b": 6.7e9, "gpt3-13b": 13e9, "gpt3-175b": 175e9, "opt-66b": 66e9, "opt-175b": 175e9, "mpt-30b": 30e9}

# Small configs in the words of each family; the values are published ones where a model is named.
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
QWEN = LLAMA | {"model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944}
QWEN |= {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "attention_bias": True}
NEOX = {"model_type": "gpt_neox", "vocab_size": 50_432, "hidden_size": 4096, "num_hidden_layers": 32}
NEOX |= {"num_attention_heads": 32, "intermediate_size": 16_384, "max_position_embeddings": 2048}
STARCODER = {"model_type": "starcoder2", "vocab_size": 49_152, "hidden_size": 3072, "intermediate_size": 12_288}
STARCODER |= {"num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2}
STARCODER |= {"max_position_embeddings": 16_384, "use_bias": True}
OPT = {"model_type": "opt", "vocab_size": 50_272, "hidden_size": 4096, "num_hidden_layers": 32, "ffn_dim": 16_384}
OPT |= {"num_attention_heads": 32, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096}
MPT = {"model_type": "mpt", "vocab_size": 50_432, "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4}
MPT |= {"max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True}}
GPT2 = {"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024}
QWEN3 = LLAMA | {"model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072}
QWEN3 |= {"num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128, "tie_word_embeddings": True}
GEMMA = {"model_type": "gemma", "vocab_size": 256_000, "hidden_size": 2048, "intermediate_size": 16_384}
GEMMA |= {"num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
GEMMA |= {"max_position_embeddings": 8192}
CONFIGS = {
    "llama": (LLAMA, 8_030_261_248),
    "mistral": (LLAMA | {"model_type": "mistral", "vocab_size": 32_000, "sliding_window": 4096}, 7_241_732_096),
    "qwen2": (QWEN, 7_615_616_512),
    "qwen3": (QWEN3, 596_049_920),
    "gemma": (GEMMA, 2_506_172_416),
    "phi3": (LLAMA | {"model_type": "phi3", "vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192,
                      "num_key_value_heads": 32}, 3_821_079_552),
    "starcoder2": (STARCODER, 3_030_371_328),
    "gpt2": (GPT2, 1_557_611_200),
    "gpt_neox": (NEOX, 6_857_302_016),
    "opt": (OPT, 6_658_473_984),
    "mpt": (MPT, 6_649_286_656),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_a_public_model_are_the_published_number(name):
    assert shape_of(name).n_params == PUBLISHED[name]


@pytest.mark.parametrize("name", NAMED)
def test_where_only_the_name_is_published_it_is_the_number_rounded(name):
    assert shape_of(name).n_params == pytest.approx(NAMED[name], rel=0.02)


def test_every_model_is_held_against_something():
    same = {"llama-3.1-70b": "llama-3-70b"}
    assert set(MODELS) == set(PUBLISHED) | set(NAMED) | set(same)
    assert all(MODELS[name].n_params == MODELS[other].n_params for name, other in same.items())


@pytest.mark.parametrize("name", ["1M", "60M", "1B", "8B", "405B"])
def test_a_preset_is_the_courses_own_model(name):
    with torch.device("meta"):
        model = Transformer(preset(name, n_layers=2))
    shape = Shape.of(name, preset(name, n_layers=2))
    assert shape.n_params == sum(p.numel() for p in model.parameters())
    assert shape_of(name) == Shape.of(name, PRESETS[name])
    ours = {
        k.removeprefix("blocks.0."): tuple(p.shape) for k, p in model.named_parameters() if k.startswith("blocks.0.")
    }
    assert shape.block() == ours, "names, shapes and order"


@pytest.mark.parametrize("family", CONFIGS)
def test_a_config_file_gives_the_published_number_of_parameters(family, tmp_path):
    config, n_params = CONFIGS[family]
    path = tmp_path / "some-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    assert shape_of(str(path)).n_params == shape_of(str(path.parent)).n_params == n_params
    assert shape_of(str(path)).name == "some-model"


def test_every_family_has_a_config_among_the_tests():
    mixtures = {
        config["model_type"] for config, *_ in (*mixture_configs.PUBLISHED.values(), *mixture_configs.ROUNDED.values())
    }
    assert set(CONFIGS) | mixtures == set(FAMILIES)


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("EleutherAI/pythia-6.9b-deduped", "pythia-6.9b"),
        ("GPT2-XL", "gpt2-xl"),
    ],
)
def test_names_of_the_hub_are_understood(hub, name):
    assert shape_of(hub) is MODELS[name]


@pytest.mark.parametrize(
    ("typo", "near"),
    [("lama-3-8b", "llama-3-8b"), ("8c", "8B"), ("qwen2.6_7b", "qwen2.5-7b"), ("gpt-s", "gpt2"), ("", "did you mean")],
)
def test_a_typo_is_answered_with_the_nearest_name(typo, near):
    with pytest.raises(ValueError, match=r"^model=") as error:
        shape_of(typo)
    assert near in str(error.value).split("There are")[0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_size": None, "hidden_sizes": 4096}, "no 'hidden_size'; it has 'hidden_sizes'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0, but it must be a whole number"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True"),
        ({"num_attention_heads": 33}, "num_attention_heads=33 must divide hidden_size=4096"),
        ({"num_key_value_heads": 5}, "5 key and value heads must divide 32"),
        ({"model_type": None}, "no 'model_type'"),
        ({"model_type": "lama"}, "the nearest is 'llama'"),
        ({"model_type": "dbrx", "num_local_experts": 8}, "It is a mixture of experts"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"model_type": "qwen3", "num_experts": 128}, "mixture of experts"),
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "text_config"),
        ({"model_type": "gpt_neox", "attention_bias": False}, "attention_bias"),
    ],
)
def test_a_config_that_can_not_be_planned_is_refused_by_field(change, complaint):
    with pytest.raises(ValueError, match=r"^model='it'") as error:
        shape_of_config(LLAMA | change, "it")
    assert complaint in str(error.value)


def test_opt_350m_has_a_narrower_embedding_and_is_refused():
    with pytest.raises(ValueError, match="word_embed_proj_dim=512"):
        shape_of_config(OPT | {"word_embed_proj_dim": 512}, "opt-350m")


def test_biases_and_positions_of_mpt_follow_its_flags():
    """llm-foundry's benchmark models: learned positions, and biases everywhere; the number is its table's."""
    flags = {"no_bias": False, "vocab_size": 50_368, "attn_config": {"alibi": False}, "learned_pos_emb": True}
    assert shape_of_config(MPT | flags, "7b").n_params == 6_658_859_008


@pytest.mark.parametrize(
    ("text", "complaint"), [('{"model_type": "llama",', "not JSON"), ("[1, 2]", "not a list"), ("\xff", "not JSON")]
)
def test_a_broken_file_is_told(text, complaint, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint) as error:
        shape_of(str(path))
    assert "broken" in str(error.value)


def test_a_missing_or_unreadable_file_is_told(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        shape_of(str(tmp_path / "config.json"))
    with pytest.raises(ValueError, match="no such file"):
        shape_of(str(tmp_path))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="can't be read"):
        shape_of(str(tmp_path / "bytes.json"))
