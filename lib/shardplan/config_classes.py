"""Configuration classes of `transformers`, by model_type: their defaults, and what the planner can't plan of them.

Source: `transformers`, `models/*/configuration_*.py`.
"""

from shardplan.config_fields import ConfigClass


def _sizes(
    vocab_size: int, dim: int, hidden_dim: int, n_layers: int, heads: int, kv_heads: int | None, positions: int
) -> dict:
    """Return a class's defaults in Llama's names."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": dim,
        "intermediate_size": hidden_dim,
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "head_dim": None,
        "tie_word_embeddings": False,
    }


NO_BIAS = {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
CLASSES = {
    "llama": ConfigClass(
        _sizes(32_000, 4096, 11_008, 32, 32, None, 2048) | {"attention_bias": False, "mlp_bias": False},
        {"lm_head_bias": False},
    ),
    "mistral": ConfigClass(_sizes(32_000, 4096, 14_336, 32, 32, 8, 131_072), NO_BIAS),
    "qwen2": ConfigClass(
        _sizes(151_936, 4096, 22_016, 32, 32, 32, 32_768), NO_BIAS | {"attention_bias": True, "qkv_bias": True}
    ),
    "qwen3": ConfigClass(
        _sizes(151_936, 4096, 22_016, 32, 32, 32, 32_768) | {"head_dim": 128}, NO_BIAS | {"use_qk_norm": True}
    ),
    "gemma": ConfigClass(
        _sizes(256_000, 3072, 24_576, 28, 16, 16, 8192) | {"head_dim": 256, "tie_word_embeddings": True},
        NO_BIAS,
    ),
    "phi3": ConfigClass(
        _sizes(32_064, 3072, 8192, 32, 32, None, 4096), NO_BIAS, change_no_shape="full_attn_mod|interpolate_factor"
    ),
    "starcoder2": ConfigClass(
        _sizes(49_152, 3072, 12_288, 30, 24, 2, 4096) | {"tie_word_embeddings": True, "use_bias": True},
        {"mlp_type": "default", "norm_type": "layer_norm", "lm_head_bias": False},
    ),
    "olmo2": ConfigClass(_sizes(50_304, 4096, 11_008, 32, 32, None, 2048), NO_BIAS),
    "gemma3_text": ConfigClass(
        _sizes(262_208, 2304, 9216, 26, 8, 4, 131_072)
        | {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 6},
        NO_BIAS,
        change_no_shape=r"query_pre_attn_scalar|\w+_softcapping",
    ),
    "mixtral": ConfigClass(
        _sizes(32_000, 4096, 14_336, 32, 32, 8, 131_072) | {"num_local_experts": 8, "num_experts_per_tok": 2},
        NO_BIAS,
        {"num_experts": "num_local_experts"},
    ),
    "qwen3_moe": ConfigClass(
        _sizes(151_936, 2048, 6144, 24, 32, 4, 32_768)
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"use_sliding_window": False, "sliding_window": 4096},
        NO_BIAS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        {"num_local_experts": "num_experts"},
    ),
    "glm4_moe": ConfigClass(
        _sizes(151_552, 4096, 10_944, 46, 96, 8, 131_072)
        | {"attention_bias": False, "use_qk_norm": False, "n_routed_experts": 128, "num_experts_per_tok": 8}
        | {"moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1},
        {"mlp_bias": False, "lm_head_bias": False},
    ),
    "deepseek_v3": ConfigClass(
        {name: size for name, size in _sizes(129_280, 7168, 18_432, 61, 128, 128, 4096).items() if name != "head_dim"}
        | {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1}
        | {"first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512}
        | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        NO_BIAS | {"moe_layer_freq": 1},
        {"num_local_experts": "n_routed_experts"},
        change_no_shape="rope_interleave|head_dim|qk_head_dim",
    ),
    "gpt_oss": ConfigClass(
        _sizes(201_088, 2880, 2880, 36, 64, 8, 131_072)
        | {"head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128},
        {"attention_bias": True, "mlp_bias": False, "lm_head_bias": False},
        {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        change_no_shape="initial_context_length",
    ),
    "llama4_text": ConfigClass(
        _sizes(202_048, 5120, 8192, 48, 40, 8, 131_072)
        | {"head_dim": 128, "intermediate_size_mlp": 16_384, "num_local_experts": 16, "num_experts_per_tok": 1}
        | {
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192,
            "no_rope_layer_interval": 4,
        },
        NO_BIAS,
        change_no_shape=r"use_qk_norm|no_rope_layers|attn_temperature_tuning|floor_scale|attn_scale|for_llm_compressor",
    ),
    "gpt2": ConfigClass(
        {
            "vocab_size": 50_257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": None,
            "tie_word_embeddings": True,
        },
        aliases={
            "hidden_size": "n_embd",
            "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        change_no_shape=r"n_ctx|summary_\w+|scale_attn_\w+|reorder_and_upcast_attn",
    ),
    "gpt_neox": ConfigClass(
        {
            "vocab_size": 50_432,
            "hidden_size": 6144,
            "intermediate_size": 24_576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
        {"attention_bias": True},
        change_no_shape="use_parallel_residual",
    ),
    "opt": ConfigClass(
        {
            "vocab_size": 50_272,
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": None,
            "enable_bias": True,
            "tie_word_embeddings": True,
        },
        {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
        change_no_shape="layerdrop|init_std",
    ),
    "mpt": ConfigClass(
        {
            "vocab_size": 50_368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "learned_pos_emb": True,
            "no_bias": True,
            "norm_type": "low_precision_layernorm",
            "tie_word_embeddings": True,
            "attn_config.attn_type": "multihead_attention",
            "attn_config.kv_n_heads": None,
            "attn_config.alibi": True,
            "attn_config.rope": False,
        },
        {
            "attn_config.qk_ln": False,
            "attn_config.qk_gn": False,
            "ffn_config.ffn_type": "mptmlp",
            "ffn_config.ffn_hidden_size": None,
            "block_overrides": None,
        },
        {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        ("attn_config", "ffn_config"),
        r"verbose|logit_scale|embedding_fraction|init_device|use_pad_tok_in_ffn|final_logit_softcapping|fc_type"
        r"|ffn_config\.(fc_type|ffn_act_fn)|attn_config\.(model_type|attn_pdrop|attn_impl|clip_qkv|softmax_scale"
        r"|prefix_lm|attn_uses_sequence_id|alibi_bias_max|fused_qkv|sliding_window_size|attn_logit_softcapping|rope_\w+)",
    ),
}
