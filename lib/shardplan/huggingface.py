"""Read a Shape from a Hugging Face `config.json`: which family it is of, and what is refused.

A field that a file leaves out has the default of its own class: `num_key_value_heads` is 8 for Mistral, 2 for
StarCoder2, and the number of heads for Llama. This matters for the `text_config` of a model with several parts, which
leaves out all fields that equal the defaults. `config_fields` checks that no field is passed over, `config_readers` has
a function for each way of naming the fields.
"""

import json
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from shardplan import config_readers as read
from shardplan.config_classes import CLASSES
from shardplan.config_fields import Fields
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
    """Return the Shape for the content of a `config.json`.

    Raises ValueError that names a field which can't be planned. Warns with ConfigWarning of fields that are ignored.
    """
    if not isinstance(config, dict):
        raise ValueError(f"model={name!r}: a config.json holds an object of fields, not a {type(config).__name__}")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(_unknown_family(config, name))
    experts = [field for field in EXPERTS if config.get(field)]
    if experts and not any(field in CLASSES[kind].defaults for field in EXPERTS):
        raise ValueError(
            f"model={name!r} is a mixture of experts ({experts[0]}={config[experts[0]]}), and model_type={kind!r} has "
            f"none; of mixtures the planner knows {', '.join(MIXTURES)}"
        )
    shape = FAMILIES[kind](Fields(config, CLASSES[kind], name))
    if shape.n_heads % shape.n_kv_heads:
        raise ValueError(f"model={name!r}: {shape.n_kv_heads} key and value heads must divide {shape.n_heads} heads")
    return shape


FAMILIES = {
    "llama": read.llama_with_biases,
    "mistral": read.llama,
    "qwen2": partial(read.llama, qkv_bias=True),
    "qwen3": partial(read.llama, qk_norm=True),
    "olmo2": partial(read.llama, qk_norm=True, whole_qk_norm=True),
    "gemma": read.llama,
    "gemma3_text": read.gemma3,
    "phi3": read.llama,
    "starcoder2": read.starcoder2,
    "gpt2": read.gpt2,
    "gpt_neox": read.gpt_neox,
    "opt": read.opt,
    "mpt": read.mpt,
    "mixtral": read.mixtral,
    "qwen3_moe": read.qwen3_moe,
    "glm4_moe": read.glm4_moe,
    "deepseek_v3": read.deepseek_v3,
    "gpt_oss": read.gpt_oss,
    "llama4_text": read.llama4,
}
MIXTURES = ("mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3", "gpt_oss", "llama4_text")
_ENCODERS = "has an encoder and a decoder, and cross attention is not planned"
_STATES = "has layers with a state in the place of attention, which are not planned"
NOT_PLANNED = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "whisper"), _ENCODERS),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "jamba", "nemotron_h", "qwen3_next", "rwkv"), _STATES),
    **dict.fromkeys(("bert", "roberta", "deberta-v2", "vit", "modernbert"), "is an encoder, without a causal mask"),
}
# The model_type of a text_config that has none, by the model_type of the whole.
TEXT_PARTS = {
    **dict.fromkeys(("llava", "llava_next", "llava_next_video", "video_llava", "vipllava"), "llama"),
    **dict.fromkeys(("llava_onevision", "internvl"), "qwen2"),
    **dict.fromkeys(("idefics2", "mistral3"), "mistral"),
    "paligemma": "gemma",
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
}


def _unknown_family(config: dict, name: str) -> str:
    kind, known = config.get("model_type"), ", ".join(FAMILIES)
    if isinstance(text := config.get("text_config"), dict):
        return (
            f"model={name!r} has several parts, and the planner knows text models only: {_advice_on(text, kind, known)}"
        )
    if kind is None:
        return f"model={name!r}: its config has no 'model_type', which says how to read it; known are {known}"
    if isinstance(kind, str) and kind in NOT_PLANNED:
        return f"model={name!r}: {kind} {NOT_PLANNED[kind]}; there are {known}"
    near = get_close_matches(str(kind), FAMILIES, 1, 0.6)
    nearest = f"the nearest is {near[0]!r}, and there are" if near else "there are"
    mixture = " It is a mixture of experts." if any(config.get(field) for field in EXPERTS) else ""
    return (
        f"model={name!r}: model_type={kind!r} is not known;{mixture} {nearest} {known}. If its parameters have the "
        "shapes of one of these, write that model_type into a copy of the file"
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
