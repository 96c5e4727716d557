"""Models by name: the course's presets and well-known public ones, each with the shapes of its published config.

    shape_of("8B")                          a preset of shardlab.model
    shape_of("qwen2.5-7b")                  a public model; "Qwen/Qwen2.5-7B-Instruct" is the same
    shape_of("path/to/config.json")         any model whose family `huggingface` can read

Source: each family's paper or model card, named above its lines, and the config.json next to its weights. The tests
compare the number of parameters with the published one, exactly if the exact number was published.
"""

import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from shardlab.model import PRESETS
from shardplan.huggingface import read_config
from shardplan.shape import Experts, Latent, Shape


def _llama(*sizes: int, head_dim: int | None = None, **flags) -> Shape:
    """Return a Shape. sizes: vocabulary, width, layers, heads, key and value heads, hidden width, positions."""
    vocab_size, dim, n_layers, n_heads, n_kv_heads, hidden_dim, max_seq_len = sizes
    head_dim = head_dim or dim // n_heads
    return Shape("", vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, max_seq_len, **flags)


def _gpt(*sizes: int, tied: bool = True, bias: bool = True, learned: int | None = None) -> Shape:
    """Return a Shape. sizes: vocabulary, width, layers, heads, positions. The hidden width is four times the width."""
    vocab_size, dim, n_layers, n_heads, max_seq_len = sizes
    flags = {"gated": False, "norm": "layer", "norm_bias": bias, "qkv_bias": bias, "linear_bias": bias, "tied": tied}
    flags["learned_positions"] = max_seq_len if learned is None else learned
    return Shape("", vocab_size, dim, n_layers, n_heads, n_heads, dim // n_heads, 4 * dim, max_seq_len, **flags)


_BIASES = {"router_bias": True, "bias": True}
_GPT_OSS = {"head_dim": 64, "qkv_bias": True, "out_bias": True, "sinks": True, "window": 128, "full_share": 0.5}
_QWEN2, _QWEN3, _TIED = {"qkv_bias": True}, {"qk_norm": True, "head_dim": 128}, {"tied": True}

_SHAPES = {
    # Touvron et al. 2023, "LLaMA", table 2
    "llama-7b": _llama(32_000, 4096, 32, 32, 32, 11_008, 2048),
    "llama-13b": _llama(32_000, 5120, 40, 40, 40, 13_824, 2048),
    "llama-30b": _llama(32_000, 6656, 60, 52, 52, 17_920, 2048),
    "llama-65b": _llama(32_000, 8192, 80, 64, 64, 22_016, 2048),
    # Touvron et al. 2023, "Llama 2", table 1 and the model cards
    "llama-2-7b": _llama(32_000, 4096, 32, 32, 32, 11_008, 4096),
    "llama-2-13b": _llama(32_000, 5120, 40, 40, 40, 13_824, 4096),
    "llama-2-70b": _llama(32_000, 8192, 80, 64, 8, 28_672, 4096),
    # Grattafiori et al. 2024, "The Llama 3 herd of models", table 3, and the model cards
    "llama-3-8b": _llama(128_256, 4096, 32, 32, 8, 14_336, 8192),
    "llama-3-70b": _llama(128_256, 8192, 80, 64, 8, 28_672, 8192),
    "llama-3.1-8b": _llama(128_256, 4096, 32, 32, 8, 14_336, 131_072),
    "llama-3.1-70b": _llama(128_256, 8192, 80, 64, 8, 28_672, 131_072),
    "llama-3.1-405b": _llama(128_256, 16_384, 126, 128, 8, 53_248, 131_072),
    "llama-3.2-1b": _llama(128_256, 2048, 16, 32, 8, 8192, 131_072, **_TIED),
    "llama-3.2-3b": _llama(128_256, 3072, 28, 24, 8, 8192, 131_072, **_TIED),
    # TinyLlama (Zhang et al. 2024) and SmolLM2 (Ben Allal et al. 2025), model cards
    "tinyllama-1.1b": _llama(32_000, 2048, 22, 32, 4, 5632, 2048),
    "smollm2-135m": _llama(49_152, 576, 30, 9, 3, 1536, 8192, **_TIED),
    # Jiang et al. 2023, "Mistral 7B", table 1, and the model cards
    "mistral-7b-v0.1": _llama(32_000, 4096, 32, 32, 8, 14_336, 32_768),
    "mistral-7b-v0.3": _llama(32_768, 4096, 32, 32, 8, 14_336, 32_768),
    "mistral-nemo-12b": _llama(131_072, 5120, 40, 32, 8, 14_336, 131_072, head_dim=128),
    # Yang et al. 2024, "Qwen2.5 technical report", table 1, and the model cards
    "qwen2.5-0.5b": _llama(151_936, 896, 24, 14, 2, 4864, 32_768, **_QWEN2, **_TIED),
    "qwen2.5-1.5b": _llama(151_936, 1536, 28, 12, 2, 8960, 32_768, **_QWEN2, **_TIED),
    "qwen2.5-3b": _llama(151_936, 2048, 36, 16, 2, 11_008, 32_768, **_QWEN2, **_TIED),
    "qwen2.5-7b": _llama(152_064, 3584, 28, 28, 4, 18_944, 131_072, **_QWEN2),
    "qwen2.5-14b": _llama(152_064, 5120, 48, 40, 8, 13_824, 131_072, **_QWEN2),
    "qwen2.5-32b": _llama(152_064, 5120, 64, 40, 8, 27_648, 131_072, **_QWEN2),
    "qwen2.5-72b": _llama(152_064, 8192, 80, 64, 8, 29_568, 131_072, **_QWEN2),
    # Yang et al. 2025, "Qwen3 technical report", table 1, and the model cards
    "qwen3-0.6b": _llama(151_936, 1024, 28, 16, 8, 3072, 40_960, **_QWEN3, **_TIED),
    "qwen3-1.7b": _llama(151_936, 2048, 28, 16, 8, 6144, 40_960, **_QWEN3, **_TIED),
    "qwen3-4b": _llama(151_936, 2560, 36, 32, 8, 9728, 40_960, **_QWEN3, **_TIED),
    "qwen3-8b": _llama(151_936, 4096, 36, 32, 8, 12_288, 40_960, **_QWEN3),
    "qwen3-14b": _llama(151_936, 5120, 40, 40, 8, 17_408, 40_960, **_QWEN3),
    "qwen3-32b": _llama(151_936, 5120, 64, 64, 8, 25_600, 40_960, **_QWEN3),
    # The same, for mixtures of experts; Jiang et al. 2024, "Mixtral of experts", and the model cards
    "qwen3-30b-a3b": _llama(151_936, 2048, 48, 32, 4, 6144, 40_960, **_QWEN3, experts=Experts(128, 8, 768)),
    "qwen3-235b-a22b": _llama(151_936, 4096, 94, 64, 4, 12_288, 40_960, **_QWEN3, experts=Experts(128, 8, 1536)),
    "mixtral-8x7b-v0.1": _llama(32_000, 4096, 32, 32, 8, 14_336, 32_768, experts=Experts(8, 2, 14_336)),
    "mixtral-8x22b-v0.1": _llama(32_768, 6144, 56, 48, 8, 16_384, 65_536, experts=Experts(8, 2, 16_384)),
    # DeepSeek-AI 2024, "DeepSeek-V3", section 4.2, without the modules that predict a second token
    "deepseek-v3": _llama(
        *(129_280, 7168, 61, 128, 128, 18_432, 163_840),
        head_dim=192,
        experts=Experts(256, 8, 2048, 2048, dense_layers=3, router_bias=True),
        latent=Latent(1536, 512, 128, 64, 128),
    ),
    # OpenAI 2025, "gpt-oss", table 1, and the model cards
    "gpt-oss-20b": _llama(201_088, 2880, 24, 64, 8, 2880, 131_072, **_GPT_OSS, experts=Experts(32, 4, 2880, **_BIASES)),
    "gpt-oss-120b": _llama(
        *(201_088, 2880, 36, 64, 8, 2880, 131_072), **_GPT_OSS, experts=Experts(128, 4, 2880, **_BIASES)
    ),
    # Gemma team 2024, "Gemma", table 1; Abdin et al. 2024, "Phi-3", section 2
    "gemma-2b": _llama(256_000, 2048, 18, 8, 1, 16_384, 8192, head_dim=256, **_TIED),
    "gemma-7b": _llama(256_000, 3072, 28, 16, 16, 24_576, 8192, head_dim=256, **_TIED),
    "phi-3-mini": _llama(32_064, 3072, 32, 32, 32, 8192, 4096),
    # Radford et al. 2019, "Language models are unsupervised multitask learners", table 2, and the model cards
    "gpt2": _gpt(50_257, 768, 12, 12, 1024),
    "gpt2-medium": _gpt(50_257, 1024, 24, 16, 1024),
    "gpt2-large": _gpt(50_257, 1280, 36, 20, 1024),
    "gpt2-xl": _gpt(50_257, 1600, 48, 25, 1024),
    # Brown et al. 2020, "Language models are few-shot learners", table 2.1
    "gpt3-6.7b": _gpt(50_257, 4096, 32, 32, 2048),
    "gpt3-13b": _gpt(50_257, 5120, 40, 40, 2048),
    "gpt3-175b": _gpt(50_257, 12_288, 96, 96, 2048),
    # Zhang et al. 2022, "OPT", table 1; positions start at the third row
    "opt-125m": _gpt(50_272, 768, 12, 12, 2048, learned=2050),
    "opt-1.3b": _gpt(50_272, 2048, 24, 32, 2048, learned=2050),
    "opt-6.7b": _gpt(50_272, 4096, 32, 32, 2048, learned=2050),
    "opt-13b": _gpt(50_272, 5120, 40, 40, 2048, learned=2050),
    "opt-30b": _gpt(50_272, 7168, 48, 56, 2048, learned=2050),
    "opt-66b": _gpt(50_272, 9216, 64, 72, 2048, learned=2050),
    "opt-175b": _gpt(50_272, 12_288, 96, 96, 2048, learned=2050),
    # Biderman et al. 2023, "Pythia", table 1; Black et al. 2022, "GPT-NeoX-20B", table 1: rotary, so no learned rows
    "pythia-70m": _gpt(50_304, 512, 6, 8, 2048, tied=False, learned=0),
    "pythia-160m": _gpt(50_304, 768, 12, 12, 2048, tied=False, learned=0),
    "pythia-410m": _gpt(50_304, 1024, 24, 16, 2048, tied=False, learned=0),
    "pythia-1b": _gpt(50_304, 2048, 16, 8, 2048, tied=False, learned=0),
    "pythia-1.4b": _gpt(50_304, 2048, 24, 16, 2048, tied=False, learned=0),
    "pythia-2.8b": _gpt(50_304, 2560, 32, 32, 2048, tied=False, learned=0),
    "pythia-6.9b": _gpt(50_432, 4096, 32, 32, 2048, tied=False, learned=0),
    "pythia-12b": _gpt(50_688, 5120, 36, 40, 2048, tied=False, learned=0),
    "gpt-neox-20b": _gpt(50_432, 6144, 44, 64, 2048, tied=False, learned=0),
    # MosaicML 2023, model cards: ALiBi, no biases
    "mpt-7b": _gpt(50_432, 4096, 32, 32, 2048, bias=False, learned=0),
    "mpt-30b": _gpt(50_432, 7168, 48, 64, 8192, bias=False, learned=0),
}
MODELS = {name: replace(shape, name=name) for name, shape in _SHAPES.items()}
_VARIANT = re.compile(r"-(instruct|chat|it|base|hf|deduped|4k-instruct|128k-instruct)$")  # of the same shape


def shape_of(name_or_path: str) -> Shape:
    """Return the Shape of a preset, a public model, or a Hugging Face `config.json` (its path, or its folder).

    Raises ValueError with the nearest name, or with what is wrong in the file.
    """
    name = str(name_or_path).strip()
    if name in PRESETS:
        return Shape.of(name, PRESETS[name])
    if (public := _public(name)) in MODELS:
        return MODELS[public]
    if public in PRESETS:
        return Shape.of(public, PRESETS[public])
    if (name and Path(name).expanduser().exists()) or name.endswith(".json"):
        return read_config(Path(name).expanduser())
    known = {known.lower(): known for known in (*PRESETS, *MODELS)}
    near = get_close_matches(public, known, 3, 0.6) or get_close_matches(public, known, 1, 0.0)
    raise ValueError(
        f"model={name!r} is not known, and no file of that name is there; did you mean "
        f"{' or '.join(repr(known[n]) for n in near)}? There are {', '.join(known.values())}, and the path of a "
        "config.json of a family that `huggingface` reads"
    )


def _public(name: str) -> str:
    """Normalize a name: `meta-llama/Llama-2-7b-chat-hf`, `llama2 7b` -> `llama-2-7b`; `8b` -> the preset `8B`."""
    short = name.lower().rsplit("/", 1)[-1].replace("meta-llama-", "llama-")
    while (shorter := _VARIANT.sub("", short)) != short:
        short = shorter
    newest = {spelt(re.sub(r"-v[\d.]+$", "", known)): known for known in MODELS}  # of versions, the last
    return (newest | {spelt(known): known for known in (*PRESETS, *MODELS)}).get(spelt(short), short)


def spelt(name: str) -> str:
    """Reduce a name to letters and digits, with a point between numbers: "Llama 3.1 8B" is "llama3.1.8b"."""
    return re.sub(r"(?<!\d)\W|\W(?!\d)", "", re.sub(r"[\W_]+", ".", name.lower()))
