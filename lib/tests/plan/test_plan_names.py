"""Models, cards, strategies and options in the words that people type; a million GPUs in seconds."""

import time
import warnings

import pytest
from deadlines import deadline_s

from shardlab.model import PRESETS
from shardplan.aliases import as_options, in_our_options
from shardplan.api import plan, setup_of
from shardplan.memory.states import assign_whole_parameters
from shardplan.models import MODELS, shape_of, spelt
from shardplan.stage_parameters import Weight
from shardsim.hardware import GPUS
from shardsim.machines import MACHINES, TakenAs, machine

MODELS_TYPED = {
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "mixtral-8x7b": "mixtral-8x7b-v0.1",
    "Mistral-7B": "mistral-7b-v0.3",
    "mistral-7b-v0.1": "mistral-7b-v0.1",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "llama3-8b": "llama-3-8b",
    "llama_2_7b": "llama-2-7b",
    "Llama-3-1-8B": "llama-3.1-8b",
    "qwen2_5_7b": "qwen2.5-7b",
    "GPT-2 XL": "gpt2-xl",
    "8b": "8B",
    "facebook/opt-1.3b": "opt-1.3b",  # and not opt-13b
}
CARDS_TYPED = {  # what is typed: the machine for one GPU, and for eight
    "h100": ("H100-80GB x 1", "dgx-h100"),
    "H100 SXM": ("H100-80GB x 1", "dgx-h100"),
    "NVIDIA H100 80GB HBM3": ("H100-80GB x 1", "dgx-h100"),
    "H100 PCIe": ("H100-80GB-PCIe x 1", "H100-80GB-PCIe x 8"),
    "a100-80gb": ("A100-80GB x 1", "dgx-a100"),
    "A100-SXM4-40GB": ("A100-40GB x 1", "dgx-a100-40gb"),
    "A100 80 GB": ("A100-80GB x 1", "dgx-a100"),
    "A100-PCIE-40GB": ("A100-40GB-PCIe x 1", "A100-40GB-PCIe x 8"),
    "4090": ("RTX-4090 x 1", "RTX-4090 x 8"),
    "NVIDIA GeForce RTX 3090": ("RTX-3090 x 1", "RTX-3090 x 8"),
    "Tesla T4": ("T4 x 1", "T4 x 8"),
    "A6000": ("RTX-A6000 x 1", "RTX-A6000 x 8"),
    "B200": ("B200-180GB x 1", "dgx-b200"),
    "MI300X": ("MI300X-192GB x 1", "mi300x-box"),
    "8x H100": ("H100-80GB x 8", "H100-80GB x 8"),
    "RTX 4090 x4, 25 Gb/s": ("RTX-4090 x 4, 25 Gb/s", "RTX-4090 x 4, 25 Gb/s"),
    "DGX H100": ("dgx-h100", "dgx-h100"),
    "p5.48xlarge": ("aws-p5", "aws-p5"),
}
STRATEGIES_TYPED = {
    "ZeRO-3": ("FULL_SHARD", None),
    "zero3": ("FULL_SHARD", None),
    "fsdp": ("FULL_SHARD", None),
    "FSDP2": ("FULL_SHARD", None),
    "hsdp": ("FULL_SHARD", 8),
    "HYBRID_SHARD": ("FULL_SHARD", 8),
    "_HYBRID_SHARD_ZERO2": ("SHARD_GRAD_OP", 8),
    "ZeRO-2": ("ZERO_2", None),
    "stage 1": ("ZERO_1", None),
    "ddp": ("DDP", None),
    "NO_SHARD": ("DDP", None),
    "shard_grad_op": ("SHARD_GRAD_OP", None),
}


@pytest.mark.parametrize("typed", MODELS_TYPED)
def test_a_model_is_known_by_the_name_that_people_type(typed):
    assert shape_of(typed).name == MODELS_TYPED[typed]


def test_no_two_models_are_spelt_alike():
    names = [*PRESETS, *MODELS]
    assert len({spelt(name) for name in names}) == len(names)
    assert [shape_of(name).name for name in names] == [shape_of(name.upper()).name for name in names] == names


@pytest.mark.parametrize("typed", CARDS_TYPED)
def test_a_card_is_known_by_the_name_that_people_type(typed):
    assert (machine(typed).name, machine(typed, 8).name) == CARDS_TYPED[typed]


def test_old_spellings_are_what_they_were():
    assert [machine(name).name for name in MACHINES] == list(MACHINES)
    assert [machine(name).name for name in GPUS] == [f"{name} x 1" for name in GPUS]
    assert machine("H100-80GB x 8, 400 Gb/s each").nics_per_node == 8


def test_of_a_card_with_two_sizes_the_larger_is_taken_and_told():
    with pytest.warns(TakenAs, match="'A100' is taken as A100-80GB; there is A100-40GB too"):
        assert machine("A100", 8).name == "dgx-a100"


@pytest.mark.parametrize("typed", ["L40", "H100 NVL", "RTX 3090 Ti", "h10", "100"])
def test_another_card_is_not_taken_for_one_that_is_known(typed):
    with pytest.raises(ValueError, match="did you mean"):
        machine(typed)


@pytest.mark.parametrize("typed", STRATEGIES_TYPED)
def test_a_strategy_is_known_by_the_name_that_people_type(typed):
    s = setup_of("8B", "H100", 16, sharding=typed).strategy
    assert (s.sharding, s.shard_size) == STRATEGIES_TYPED[typed]


def test_hsdp_shards_among_the_ranks_of_a_node_that_share_the_data():
    assert setup_of("8B", "H100", 16, sharding="hsdp", tensor=2).strategy.shard_size == 4
    assert setup_of("8B", "H100", 4, sharding="hsdp").strategy.shard_size == 4


def test_options_of_other_tools_and_flags_that_cancel():
    assert in_our_options(["qwen3-30b-a3b", "--ep", "8"], set()) == ["qwen3-30b-a3b", "--expert", "8"]
    typed = ["8B", "--tp", "2", "--pp=4", "--zero", "3", "--hsdp", "--compile", "--no-compile", "--batch-size", "2"]
    assert in_our_options(typed, {"--compile"}) == [
        "8B", "--tensor", "2", "--pipeline=4", "--sharding", "3", "--sharding", "hsdp", "--micro-batch", "2",
    ]  # fmt: skip
    measured = ["8B", "--measured", "tokens_per_s=5", "memory=61GiB", "--gpus", "8"]
    assert in_our_options(measured, set()) == [
        "8B", "--measured", "tokens_per_s=5", "--measured", "memory=61GiB", "--gpus", "8",
    ]  # fmt: skip


def test_fields_as_options_to_paste():
    fields = {"recompute": "full", "compile": True, "sequence_parallel": False, "shard_size": None, "world_size": 16}
    assert as_options(fields) == "--recompute full --compile --no-sequence-parallel --shard-size all --gpus 16"


@pytest.mark.parametrize("sharding", ["DDP+ZERO_1", "FULL_SHARD", "ZERO_2", "hsdp"])
def test_a_million_gpus_take_seconds(sharding):
    began_s = time.perf_counter()
    assert plan("llama-3.1-8b", "H100", 1_000_000, sharding=sharding).job_tokens_per_s > 0
    assert time.perf_counter() - began_s < deadline_s(5)


def test_parameters_are_dealt_to_ranks_as_torch_does():
    """To the rank with the fewest elements, the first of several; ranks that would get none are left out."""
    weights = [Weight(str(i), (n,), 4, 4) for i, n in enumerate([7, 5, 5, 4, 3, 1])]
    assert assign_whole_parameters(weights, 3) == [[7, 1], [5, 4], [5, 3]]
    assert assign_whole_parameters(weights, 10**9) == [[7], [5], [5], [4], [3], [1]]


def test_what_was_typed_is_not_warned_about():
    with warnings.catch_warnings(action="error"):
        assert setup_of("Llama 3.1 8B", "a100-80gb", 8, sharding="fsdp").machine.name == "dgx-a100"
