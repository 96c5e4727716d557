"""Fields of a Hugging Face config: their values, and a check that none is passed over.

Every field of a file is one of four kinds, which `config_classes` and `CHANGE_NO_SHAPE` list:

    read               parameters' shapes depend on it; if the file leaves it out, the class's default holds
    built in           the planner knows one value only, and refuses any other
    changes no shape   ignored
    anything else      ignored with a ConfigWarning that names the field and its value
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from reprlib import repr as short
from typing import NoReturn


class ConfigWarning(UserWarning):
    """Warning that a plan ignores a field of a config."""


@dataclass(frozen=True)
class ConfigClass:
    """A configuration class of `transformers`, as far as shapes depend on it."""

    defaults: Mapping[str, object]  # of the class, for fields that are read; None: computed from other fields
    built_in: Mapping[str, object] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of fields: the class's `attribute_map`
    parts: tuple[str, ...] = ()  # fields that hold fields: "attn_config" with "alibi" is read as "attn_config.alibi"
    change_no_shape: str = ""  # a pattern, for fields of this class alone


# A cross attention has weights of its own, and a pruned head has none.
BUILT_IN = {"is_encoder_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")  # classes with an output for each token of the vocabulary
# all have the same parameters
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
CHANGE_NO_SHAPE = re.compile(
    # what the file says of itself and of the library
    r"model_type|architectures|_?name_or_path|_commit_hash|auto_map|transformers_version|transformers\.js_config"
    r"|unsloth_\w+|is_composition|is_llama_config|tokenizer_\w+|model_max_length|init_config"
    r"|(torch_)?dtype|use_bfloat16|torchscript|tf_legacy_loss|quantization_config|initializer_range|pretraining_tp"
    # other heads, and generation
    r"|num_labels|id2label|label2id|problem_type|finetuning_task|task_specific_params|prefix|is_decoder"
    r"|cross_attention_hidden_size|tie_encoder_decoder|chunk_size_feed_forward|gradient_checkpointing|use_cache"
    r"|cache_implementation|return_dict\w*|output_(attentions|hidden_states|scores)|max_length|min_length|do_sample"
    r"|early_stopping|num_beams|num_beam_groups|diversity_penalty|temperature|top_[kp]|typical_p|repetition_penalty"
    r"|length_penalty|(encoder_)?no_repeat_ngram_size|bad_words_ids|num_return_sequences|remove_invalid_values"
    r"|exponential_decay_length_penalty|(begin_)?suppress_tokens|\w+_token_(id|ids|index)|num_image_tokens"
    # what is computed with the parameters
    r"|hidden_act|hidden_activation|activation_function|\w*(dropout|pdrop)|\w+_(eps|epsilon)"
    r"|_?attn_implementation(_internal|_autoset)?|_flash_attn_2_enabled|rope_\w+|rotary_\w+|partial_rotary_factor"
    r"|original_max_position_embeddings|max_sequence_length|use_sliding_window|sliding_window|max_window_layers"
    r"|layer_types|sliding_window_pattern|norm_topk_prob|output_router_logits|router_\w+|routed_scaling_factor"
    r"|n_group|topk_group|topk_method|scoring_func|swiglu_\w+|seq_aux|aux_loss_alpha|ep_size|use_bidirectional_attention|use_mrope"
)


class Fields:
    """The fields of one config. Raises ValueError for one that can't be planned, and warns of one that is unknown."""

    def __init__(self, config: dict, kind: ConfigClass, name: str) -> None:
        self.kind, self.name = kind, name
        self.config = self._renamed(self._flat(config))
        self._check_built_in()
        self._check_unknown()

    def value(self, field: str) -> object:
        """Return a field's value, or the class's default if the file leaves the field out."""
        return self.config.get(field, self.kind.defaults.get(field))

    def number(self, field: str, if_none: int | None = None) -> int:
        value = self.value(field)
        value = if_none if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(field, "but it must be a whole number, at least 1")
        return value

    def count(self, field: str) -> int:
        """Return a number that may be 0 or left out."""
        value = self.value(field)
        return 0 if value in (None, 0) and not isinstance(value, bool) else self.number(field)

    def flag(self, field: str) -> bool:
        value = self.value(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, "but it must be true or false")
        return bool(value)

    def share(self, of: str, by: str) -> int:
        """Return `of` / `by`, for configs that don't give a head's width."""
        whole, parts = self.number(of), self.number(by)
        if whole % parts:
            raise ValueError(f"model={self.name!r}: {by}={parts} must divide {of}={whole}, or give head_dim")
        return whole // parts

    def refuse(self, field: str, why: str) -> NoReturn:
        raise ValueError(f"model={self.name!r}: {field}={short(self.value(field))}, {why}")

    def _flat(self, config: dict) -> dict:
        """Return the config with the fields of its parts beside its own."""
        flat = {}
        for name, value in config.items():
            if name not in self.kind.parts:
                flat[name] = value
            elif isinstance(value, dict):
                flat |= {f"{name}.{inner}": setting for inner, setting in value.items()}
            elif value is not None:
                raise ValueError(f"model={self.name!r}: {name}={value!r}, but it must be an object of fields")
        return flat

    def _renamed(self, config: dict) -> dict:
        named: dict = {}
        for given, value in config.items():
            name = self.kind.aliases.get(given, given)
            if named.setdefault(name, value) != value:
                raise ValueError(f"model={self.name!r}: {given}={value!r} contradicts {name}: they are one field")
        return named

    def _check_built_in(self) -> None:
        for name, known in {**BUILT_IN, **self.kind.built_in}.items():
            value = self.config.get(name, known)
            if value != known and (value is not None or known):
                self.refuse(name, f"and the planner knows only {name}={known!r} for this model_type")
        layers = self.config.get("layer_types") or []
        if others := sorted({str(layer) for layer in layers} - ATTENTION_LAYERS):
            self.refuse("layer_types", f"and the planner does not know {others[0]!r}")

    def _check_unknown(self) -> None:
        own = re.compile(self.kind.change_no_shape)
        known = {*self.kind.defaults, *self.kind.built_in, *BUILT_IN}
        unknown = {
            name: value
            for name, value in self.config.items()
            if value is not None and name not in known and not (CHANGE_NO_SHAPE.fullmatch(name) or own.fullmatch(name))
        }
        for name, value in unknown.items():
            if isinstance(value, int) and (near := get_close_matches(name, self._missing(), 1, 0.8)):
                raise ValueError(f"model={self.name!r}: its config has no {near[0]!r}; it has {name!r}")
        if unknown:
            given = ", ".join(f"{name}={short(value)}" for name, value in unknown.items())
            self._warn(f"the planner ignores {given}: if this changes a parameter's shape, the plan is wrong")
        heads = self.config.get("architectures") or []
        if others := [name for name in heads if not str(name).endswith(LANGUAGE_MODELS)]:
            self._warn(
                f"architectures={others!r}, but the plan is for the language model, whose output layer has a row for "
                "each token of the vocabulary"
            )

    def _missing(self) -> list[str]:
        return [name for name in self.kind.defaults if self.config.get(name) is None]

    def _warn(self, words: str) -> None:
        warnings.warn(f"model={self.name!r}: {words}", ConfigWarning, stacklevel=2)
