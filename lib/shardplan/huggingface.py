"""Read a Shape from a Hugging Face `config.json`: one function for each way of naming the fields.

Fields that change no shape are not read: rotary scaling, sliding windows, dropout, the activation function.

Source: the configuration classes of `transformers`, whose defaults hold if a file leaves a field out.
"""

import json
from difflib import get_close_matches
from pathlib import Path

from shardplan.shape import Shape

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok")


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
    """Return the Shape for the content of a `config.json`. Raises ValueError that names the field."""
    if not isinstance(config, dict):
        raise ValueError(f"model={name!r}: a config.json holds an object of fields, not a {type(config).__name__}")
    fields = _Fields(config, name)
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(_unknown_family(config, name))
    if experts := [field for field in EXPERTS if config.get(field)]:
        raise ValueError(
            f"model={name!r} is a mixture of experts ({experts[0]}={config[experts[0]]}), and the planner knows dense "
            "models only; a dense model with the active experts' width bounds its time, not its memory"
        )
    shape = FAMILIES[kind](fields)
    if shape.n_heads % shape.n_kv_heads:
        raise ValueError(f"model={name!r}: {shape.n_kv_heads} key and value heads must divide {shape.n_heads} heads")
    return shape


class _Fields:
    """Fields of a config. A missing field raises an error that names it."""

    def __init__(self, config: dict, name: str) -> None:
        self.config, self.name = config, name

    def number(self, field: str, default: int | None = None) -> int:
        value = self.config.get(field)
        value = default if value is None else value
        if value is None:
            near = get_close_matches(field, self.config.keys() - {field}, 1)
            hint = f"; it has {near[0]!r}" if near else ""
            raise ValueError(f"model={self.name!r}: its config has no {field!r}{hint}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"model={self.name!r}: {field}={value!r}, but it must be a whole number, at least 1")
        return value

    def flag(self, field: str, default: bool) -> bool:
        value = self.config.get(field)
        return default if value is None else bool(value)

    def share(self, of: str, by: str) -> int:
        """Return `of` / `by`, for configs that don't give a head's width."""
        whole, parts = self.number(of), self.number(by)
        if whole % parts:
            raise ValueError(f"model={self.name!r}: {by}={parts} must divide {of}={whole}")
        return whole // parts

    def refuse(self, field: str, why: str) -> None:
        raise ValueError(f"model={self.name!r}: {field}={self.config.get(field)!r}: {why}")


def _llama(f: _Fields, **habits) -> Shape:
    """Read Llama's names, which Mistral, Qwen, Gemma and Phi-3 share."""
    attention_bias = f.flag("attention_bias", False)
    if attention_bias != f.flag("mlp_bias", attention_bias and habits.get("linear_bias", False)):
        f.refuse("attention_bias", "a bias in attention and none in the feed-forward (or the reverse) can't be planned")
    heads, norm_and_ties = f.number("num_attention_heads"), {"tied": f.flag("tie_word_embeddings", False)}
    biases = {"qkv_bias": attention_bias, "linear_bias": attention_bias}
    return Shape(
        f.name,
        f.number("vocab_size"),
        f.number("hidden_size"),
        f.number("num_hidden_layers"),
        heads,
        f.number("num_key_value_heads", heads),
        f.number("head_dim", None if f.config.get("head_dim") else f.share("hidden_size", "num_attention_heads")),
        f.number("intermediate_size"),
        f.number("max_position_embeddings"),
        **{**norm_and_ties, **biases, **habits},
    )


def _qwen2(f: _Fields) -> Shape:
    return _llama(f, qkv_bias=True)


def _qwen3(f: _Fields) -> Shape:
    return _llama(f, qk_norm=True)


def _gemma(f: _Fields) -> Shape:
    return _llama(f, tied=f.flag("tie_word_embeddings", True))


def _starcoder2(f: _Fields) -> Shape:
    bias = f.flag("use_bias", True)
    tied = f.flag("tie_word_embeddings", True)
    return _llama(f, gated=False, norm="layer", qkv_bias=bias, linear_bias=bias, tied=tied)


def _gpt_neox(f: _Fields) -> Shape:
    """Read GPT-NeoX's names. Attention and feed-forward may be side by side or in turn: the shapes are the same."""
    if not f.flag("attention_bias", True):
        f.refuse("attention_bias", "a feed-forward with biases beside attention without can't be planned")
    heads = f.number("num_attention_heads")
    width = f.share("hidden_size", "num_attention_heads")
    sizes = (f.number("vocab_size"), f.number("hidden_size"), f.number("num_hidden_layers"), heads, heads, width)
    tied = f.flag("tie_word_embeddings", False)
    return _gpt(f.name, *sizes, f.number("intermediate_size"), f.number("max_position_embeddings"), tied=tied)


def _gpt2(f: _Fields) -> Shape:
    dim, heads, positions = f.number("n_embd"), f.number("n_head"), f.number("n_positions")
    sizes = (f.number("vocab_size"), dim, f.number("n_layer"), heads, heads, f.share("n_embd", "n_head"))
    hidden_dim = f.number("n_inner", 4 * dim)
    return _gpt(f.name, *sizes, hidden_dim, positions, learned_positions=positions)


def _opt(f: _Fields) -> Shape:
    dim, heads, positions = (
        f.number("hidden_size"),
        f.number("num_attention_heads"),
        f.number("max_position_embeddings"),
    )
    if f.number("word_embed_proj_dim", dim) != dim:
        f.refuse("word_embed_proj_dim", "an embedding narrower than the model (OPT-350m's) can't be planned")
    sizes = (f.number("vocab_size"), dim, f.number("num_hidden_layers"), heads, heads)
    width = f.share("hidden_size", "num_attention_heads")
    # two rows more than positions, as in the code that it was trained with
    return _gpt(f.name, *sizes, width, f.number("ffn_dim"), positions, learned_positions=positions + 2)


def _mpt(f: _Fields) -> Shape:
    """Read MPT's names. It has biases, those of layer norms included, only if `no_bias` is false. ALiBi has no
    parameters; the plan counts a rotation in its place."""
    dim, heads = f.number("d_model"), f.number("n_heads")
    attention = f.config.get("attn_config") or {}
    kv_heads = int(attention.get("kv_n_heads") or heads)
    positions, bias = f.number("max_seq_len"), not f.flag("no_bias", True)
    learned = f.flag("learned_pos_emb", True) and not (attention.get("alibi", True) or attention.get("rope"))
    sizes = (f.number("vocab_size"), dim, f.number("n_layers"), heads, kv_heads, f.share("d_model", "n_heads"))
    hidden_dim = f.number("expansion_ratio", 4) * dim
    flags = {"learned_positions": positions if learned else 0, "bias": bias}
    return _gpt(f.name, *sizes, hidden_dim, positions, **flags)


def _gpt(*sizes, tied: bool = True, bias: bool = True, learned_positions: int = 0) -> Shape:
    """Return a Shape like GPT-2's: no gate, layer norms, biases."""
    flags = {"gated": False, "norm": "layer", "norm_bias": bias, "qkv_bias": bias, "linear_bias": bias}
    return Shape(*sizes, tied=tied, learned_positions=learned_positions, **flags)


FAMILIES = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "phi3": _llama,
    "starcoder2": _starcoder2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "mpt": _mpt,
}


def _unknown_family(config: dict, name: str) -> str:
    kind, known = config.get("model_type"), ", ".join(FAMILIES)
    if isinstance(config.get("text_config"), dict):
        return f"model={name!r} has several parts: save its 'text_config' as a config.json of its own and plan that"
    if kind is None:
        return f"model={name!r}: its config has no 'model_type', which says how to read it; known are {known}"
    near = get_close_matches(str(kind), FAMILIES, 1, 0.0)[0]
    return (
        f"model={name!r}: model_type={kind!r} is not known; the nearest is {near!r}, and there are {known}. If its "
        "parameters have the shapes of one of these, write that model_type into a copy of the file"
    )
