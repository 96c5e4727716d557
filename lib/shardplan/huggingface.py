"""Read a Shape from a Hugging Face `config.json`: one function for each way of naming the fields.

A field that a file leaves out has the default of its own class: `num_key_value_heads` is 8 for Mistral, 2 for
StarCoder2, and the number of heads for Llama. This matters for the `text_config` of a model with several parts, which
leaves out all fields that equal the defaults. `config_fields` checks that no field is passed over.

Source: the configuration classes of `transformers`, `models/*/configuration_*.py`. MPT follows llm-foundry's model,
whose code its files name, with the defaults of `transformers`.
"""

import json
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from shardplan.config_classes import CLASSES
from shardplan.config_fields import Fields
from shardplan.shape import Shape

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok")
MPT_NORMS = ("low_precision_layernorm", "layernorm", "low_precision_rmsnorm", "rmsnorm")


def read_config(path: str | Path) -> Shape:
    """Read a `config.json`, or the one in a folder. Raises ValueError with the file, the field, and what is valid."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"model={str(path)!r}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"model={str(path)!r} can't be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"model={str(path)!r} is not JSON: {error.msg} in line {error.lineno}; it should be a model's config.json"
        ) from None
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return shape_of_config(config, name)


def shape_of_config(config: dict, name: str) -> Shape:
    """Return the Shape for the content of a `config.json`.

    Raises ValueError that names a field which can't be planned. Warns with ConfigWarning of fields that are ignored.
    """
    if not isinstance(config, dict):
        raise ValueError(f"model={name!r}: a config.json holds an object of fields, not a {type(config).__name__}")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(_unknown_family(config, name))
    if experts := [field for field in EXPERTS if config.get(field)]:
        raise ValueError(
            f"model={name!r} is a mixture of experts ({experts[0]}={config[experts[0]]}), and the planner knows dense "
            "models only; a dense model with the active experts' width bounds its time, not its memory"
        )
    shape = FAMILIES[kind](Fields(config, CLASSES[kind], name))
    if shape.n_heads % shape.n_kv_heads:
        raise ValueError(f"model={name!r}: {shape.n_kv_heads} key and value heads must divide {shape.n_heads} heads")
    return shape


def _llama(f: Fields, **flags) -> Shape:
    """Read Llama's names, which Mistral, Qwen, Gemma, Phi-3 and StarCoder2 share."""
    heads = f.number("num_attention_heads")
    return Shape(
        f.name,
        f.number("vocab_size"),
        f.number("hidden_size"),
        f.number("num_hidden_layers"),
        heads,
        f.number("num_key_value_heads", heads),
        f.number("head_dim", None if f.value("head_dim") else f.share("hidden_size", "num_attention_heads")),
        f.number("intermediate_size"),
        f.number("max_position_embeddings"),
        tied=f.flag("tie_word_embeddings"),
        **flags,
    )


def _llama_with_biases(f: Fields) -> Shape:
    bias = f.flag("attention_bias")
    if bias != f.flag("mlp_bias"):
        f.refuse(
            "attention_bias", "and a bias in attention and none in the feed-forward, or the reverse, can't be planned"
        )
    return _llama(f, qkv_bias=bias, linear_bias=bias)


def _starcoder2(f: Fields) -> Shape:
    bias = f.flag("use_bias")
    return _llama(f, gated=False, norm="layer", qkv_bias=bias, linear_bias=bias)


def _gpt_neox(f: Fields) -> Shape:
    """Read GPT-NeoX's names. Attention and feed-forward may be side by side or in turn: the shapes are the same."""
    heads = f.number("num_attention_heads")
    width = f.share("hidden_size", "num_attention_heads")
    sizes = (f.number("vocab_size"), f.number("hidden_size"), f.number("num_hidden_layers"), heads, heads, width)
    tied = f.flag("tie_word_embeddings")
    return _gpt(f.name, *sizes, f.number("intermediate_size"), f.number("max_position_embeddings"), tied=tied)


def _gpt2(f: Fields) -> Shape:
    dim, heads, positions = f.number("n_embd"), f.number("n_head"), f.number("n_positions")
    sizes = (f.number("vocab_size"), dim, f.number("n_layer"), heads, heads, f.share("n_embd", "n_head"))
    flags = {"tied": f.flag("tie_word_embeddings"), "learned_positions": positions}
    return _gpt(f.name, *sizes, f.number("n_inner", 4 * dim), positions, **flags)


def _opt(f: Fields) -> Shape:
    dim, heads, bias = f.number("hidden_size"), f.number("num_attention_heads"), f.flag("enable_bias")
    if f.number("word_embed_proj_dim", dim) != dim:
        f.refuse("word_embed_proj_dim", "and an embedding narrower than the model (OPT-350m's) can't be planned")
    positions = f.number("max_position_embeddings")
    sizes = (f.number("vocab_size"), dim, f.number("num_hidden_layers"), heads, heads)
    width = f.share("hidden_size", "num_attention_heads")
    # OPT's code adds two rows before the first position
    flags = {"tied": f.flag("tie_word_embeddings"), "bias": bias, "norm_bias": True, "learned_positions": positions + 2}
    return _gpt(f.name, *sizes, width, f.number("ffn_dim"), positions, **flags)


def _mpt(f: Fields) -> Shape:
    """Read MPT's names. Only if `no_bias` is false are there biases, also in layer norms. ALiBi has no parameters; the
    plan counts a rotation in its place."""
    dim, heads, positions = f.number("d_model"), f.number("n_heads"), f.number("max_seq_len")
    ratio, norm = f.value("expansion_ratio"), f.value("norm_type")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or int(ratio * dim) < 1:
        f.refuse("expansion_ratio", "but it must be a number above 0")
    if norm not in MPT_NORMS:
        f.refuse("norm_type", f"and the planner knows {', '.join(MPT_NORMS)}")
    sizes = (f.number("vocab_size"), dim, f.number("n_layers"), heads, _mpt_kv_heads(f, heads))
    rotated = f.flag("attn_config.alibi") or f.flag("attn_config.rope")
    flags = {
        "tied": f.flag("tie_word_embeddings"),
        "bias": not f.flag("no_bias"),
        "norm": "rms" if "rms" in str(norm) else "layer",
        "learned_positions": positions if f.flag("learned_pos_emb") and not rotated else 0,
    }
    return _gpt(f.name, *sizes, f.share("d_model", "n_heads"), int(ratio * dim), positions, **flags)


def _mpt_kv_heads(f: Fields, heads: int) -> int:
    kind, given = f.value("attn_config.attn_type"), f.number("attn_config.kv_n_heads", heads)
    by_kind = {"multihead_attention": heads, "multiquery_attention": 1, "grouped_query_attention": given}
    if kind not in by_kind:
        f.refuse("attn_config.attn_type", f"and the planner knows {', '.join(by_kind)}")
    if f.value("attn_config.kv_n_heads") is not None and given != by_kind[kind]:
        f.refuse("attn_config.kv_n_heads", f"but {kind} has {by_kind[kind]}")
    return by_kind[kind]


def _gpt(
    *sizes,
    tied: bool,
    bias: bool = True,
    norm_bias: bool | None = None,
    norm: str = "layer",
    learned_positions: int = 0,
) -> Shape:
    """Return a Shape like GPT-2's: no gate, layer norms, biases."""
    norm_bias = bias if norm_bias is None else norm_bias
    flags = {"gated": False, "norm": norm, "norm_bias": norm_bias, "qkv_bias": bias, "linear_bias": bias}
    return Shape(*sizes, tied=tied, learned_positions=learned_positions, **flags)


FAMILIES = {
    "llama": _llama_with_biases,
    "mistral": _llama,
    "qwen2": partial(_llama, qkv_bias=True),
    "qwen3": partial(_llama, qk_norm=True),
    "gemma": _llama,
    "phi3": _llama,
    "starcoder2": _starcoder2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "mpt": _mpt,
}
# The model_type of a text_config that has none, by the model_type of the whole.
TEXT_PARTS = {
    **dict.fromkeys(("llava", "llava_next", "llava_next_video", "video_llava", "vipllava"), "llama"),
    **dict.fromkeys(("llava_onevision", "internvl"), "qwen2"),
    **dict.fromkeys(("idefics2", "mistral3"), "mistral"),
    "paligemma": "gemma",
}


def _unknown_family(config: dict, name: str) -> str:
    kind, known = config.get("model_type"), ", ".join(FAMILIES)
    if isinstance(text := config.get("text_config"), dict):
        return (
            f"model={name!r} has several parts, and the planner knows text models only: {_advice_on(text, kind, known)}"
        )
    if kind is None:
        return f"model={name!r}: its config has no 'model_type', which says how to read it; known are {known}"
    near = get_close_matches(str(kind), FAMILIES, 1, 0.0)[0]
    return (
        f"model={name!r}: model_type={kind!r} is not known; the nearest is {near!r}, and there are {known}. If its "
        "parameters have the shapes of one of these, write that model_type into a copy of the file"
    )


def _advice_on(text: dict, whole: object, known: str) -> str:
    kind = text.get("model_type") or TEXT_PARTS.get(str(whole))
    if not isinstance(kind, str) or kind not in FAMILIES:
        return (
            f"its 'text_config' has model_type={kind!r}, which is not known either; known are {known}. If its "
            "parameters have the shapes of one of these, save it as a config.json of its own with that model_type"
        )
    added = "" if text.get("model_type") else f', with "model_type": "{kind}" added,'
    return f"save its 'text_config' as a config.json of its own{added} and plan that"
