"""Read a Shape's sizes from the fields of a Hugging Face config: one function for each way of naming them.

Source: the configuration classes of `transformers`, `models/*/configuration_*.py`, and their models. MPT follows
llm-foundry's model, whose code its files name, with the defaults of `transformers`.
"""

from dataclasses import replace

from shardplan.config_fields import Fields
from shardplan.shape import Experts, Latent, Shape

MPT_NORMS = ("low_precision_layernorm", "layernorm", "low_precision_rmsnorm", "rmsnorm")


def llama(f: Fields, **flags) -> Shape:
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
        **_window(f),
        **flags,
    )


def _window(f: Fields) -> dict:
    """Read how far a query sees, and in which share of the layers it sees all."""
    window, n_layers = f.value("sliding_window"), f.number("num_hidden_layers")
    if not window or f.value("use_sliding_window") is False:
        return {}
    if types := f.value("layer_types"):
        full = types.count("full_attention")
    elif pattern := f.value("sliding_window_pattern"):
        full = n_layers // pattern
    else:
        full = f.count("max_window_layers") if f.value("use_sliding_window") else 0
    return {"window": f.number("sliding_window"), "full_share": min(full, n_layers) / n_layers}


def llama_with_biases(f: Fields) -> Shape:
    bias = f.flag("attention_bias")
    if bias != f.flag("mlp_bias"):
        f.refuse(
            "attention_bias", "and a bias in attention and none in the feed-forward, or the reverse, can't be planned"
        )
    return llama(f, qkv_bias=bias, linear_bias=bias)


def starcoder2(f: Fields) -> Shape:
    bias = f.flag("use_bias")
    return llama(f, gated=False, norm="layer", qkv_bias=bias, linear_bias=bias)


def gpt_neox(f: Fields) -> Shape:
    """Read GPT-NeoX's names. Attention and feed-forward may be side by side or in turn: the shapes are the same."""
    heads = f.number("num_attention_heads")
    width = f.share("hidden_size", "num_attention_heads")
    sizes = (f.number("vocab_size"), f.number("hidden_size"), f.number("num_hidden_layers"), heads, heads, width)
    tied = f.flag("tie_word_embeddings")
    return _gpt(f.name, *sizes, f.number("intermediate_size"), f.number("max_position_embeddings"), tied=tied)


def gpt2(f: Fields) -> Shape:
    dim, heads, positions = f.number("n_embd"), f.number("n_head"), f.number("n_positions")
    sizes = (f.number("vocab_size"), dim, f.number("n_layer"), heads, heads, f.share("n_embd", "n_head"))
    flags = {"tied": f.flag("tie_word_embeddings"), "learned_positions": positions}
    return _gpt(f.name, *sizes, f.number("n_inner", 4 * dim), positions, **flags)


def opt(f: Fields) -> Shape:
    dim, heads, bias = f.number("hidden_size"), f.number("num_attention_heads"), f.flag("enable_bias")
    if f.number("word_embed_proj_dim", dim) != dim:
        f.refuse("word_embed_proj_dim", "and an embedding narrower than the model (OPT-350m's) can't be planned")
    positions = f.number("max_position_embeddings")
    sizes = (f.number("vocab_size"), dim, f.number("num_hidden_layers"), heads, heads)
    width = f.share("hidden_size", "num_attention_heads")
    # OPT's code adds two rows before the first position
    flags = {"tied": f.flag("tie_word_embeddings"), "bias": bias, "norm_bias": True, "learned_positions": positions + 2}
    return _gpt(f.name, *sizes, width, f.number("ffn_dim"), positions, **flags)


def mpt(f: Fields) -> Shape:
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


def gemma3(f: Fields) -> Shape:
    """Read Gemma 3's text model: norms before and after each part, and five layers of six with a window."""
    return llama(f, qk_norm=True, post_norms=2)


def mixtral(f: Fields) -> Shape:
    n, per_token = f.number("num_local_experts"), f.number("num_experts_per_tok")
    return llama(f, experts=Experts(n, per_token, f.number("intermediate_size")))


def qwen3_moe(f: Fields) -> Shape:
    experts = Experts(f.number("num_experts"), f.number("num_experts_per_tok"), f.number("moe_intermediate_size"))
    return llama(f, qk_norm=True, experts=experts)


def glm4_moe(f: Fields) -> Shape:
    return llama(f, qkv_bias=f.flag("attention_bias"), qk_norm=f.flag("use_qk_norm"), experts=_deepseek_experts(f))


def deepseek_v3(f: Fields) -> Shape:
    """Read DeepSeek-V3's names. Its modules that predict a second token are not planned: they are not in its config."""
    plain, turned = f.number("qk_nope_head_dim"), f.number("qk_rope_head_dim")
    ranks = f.count("q_lora_rank"), f.number("kv_lora_rank")
    shape = llama(f, experts=_deepseek_experts(f), latent=Latent(*ranks, plain, turned, f.number("v_head_dim")))
    if shape.n_kv_heads != shape.n_heads:
        f.refuse("num_key_value_heads", f"and latent attention has as many as heads, {shape.n_heads}")
    return replace(shape, head_dim=plain + turned)


def _deepseek_experts(f: Fields) -> Experts:
    width = f.number("moe_intermediate_size")
    sizes = f.number("n_routed_experts"), f.number("num_experts_per_tok"), width, f.count("n_shared_experts") * width
    dense = _dense_layers(f, "first_k_dense_replace", f.count("first_k_dense_replace"))
    return Experts(*sizes, dense_layers=dense, router_bias=True)


def _dense_layers(f: Fields, field: str, dense: int) -> int:
    """Return the number of blocks without experts, or refuse it: at least one of all blocks must have experts."""
    n_layers = f.number("num_hidden_layers")
    if not 0 <= dense < n_layers:
        f.refuse(
            field, f"but from 1 to {n_layers} of the {n_layers} blocks must have experts, and {n_layers - dense} would"
        )
    return dense


def gpt_oss(f: Fields) -> Shape:
    sizes = f.number("num_local_experts"), f.number("num_experts_per_tok"), f.number("intermediate_size")
    shape = llama(f, qkv_bias=True, out_bias=True, sinks=True, experts=Experts(*sizes, router_bias=True, bias=True))
    return shape if f.value("layer_types") else replace(shape, full_share=0.5)


def llama4(f: Fields) -> Shape:
    """Read Llama 4's text model. A chunk in which queries see each other is taken for a window of its size."""
    step, n_layers, width = (
        f.number(name) for name in ("interleave_moe_layer_step", "num_hidden_layers", "intermediate_size")
    )
    mixed = f.value("moe_layers")
    if not isinstance(mixed, list | None):
        f.refuse("moe_layers", "but it must be a list of layers")
    of_blocks = "interleave_moe_layer_step" if mixed is None else "moe_layers"
    dense = _dense_layers(f, of_blocks, n_layers - (n_layers // step if mixed is None else len(mixed)))
    experts = Experts(f.number("num_local_experts"), f.number("num_experts_per_tok"), width, width, dense_layers=dense)
    shape = replace(llama(f, experts=experts), hidden_dim=f.number("intermediate_size_mlp"))
    every = f.number("no_rope_layer_interval")
    return replace(shape, window=f.count("attention_chunk_size"), full_share=n_layers // every / n_layers)
