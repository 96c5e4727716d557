"""Lesson 20's helpers: accelerate and transformers shard and train as one process does; each trap is still one."""

import json
import warnings

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson_answers import defined

from shardcourse.experiments import hugging_face
from shardcourse.lessons.cells import code_cells
from shardcourse.repository import ROOT
from shardlab import launch

SIZES = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


def model_of(folder=None, **options):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if folder:
        return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))


def on_ranks(folder):
    """Train in four ways. Return by name the model's kind and the losses; the calls, tied and untied."""
    from torch.distributed.fsdp import fully_shard
    from transformers.distributed import DistributedConfig

    hugging_face.require()
    hugging_face.as_torchrun()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    asked = hugging_face.training_arguments(folder, fsdp=True, fsdp_config={"reshard_after_forward": False})
    model, found = model_of(folder), {}
    calls = hugging_face.sharded_by_accelerate(model, asked)
    found["accelerate"] = hugging_face.kind(model), hugging_face.losses_of(model, 0, rank, ranks)
    found["Trainer"] = hugging_face.by_trainer(model_of(folder), 0, asked)
    native = model_of(folder, distributed_config=DistributedConfig(fsdp_size=ranks))
    found["native"] = hugging_face.by_trainer(native, 0, hugging_face.training_arguments(folder))
    apart = model_of(folder)
    for part in (apart.model.embed_tokens, apart.lm_head, *apart.model.layers, apart):
        fully_shard(part)
    try:
        found["units of their own"] = "", hugging_face.losses_of(apart, 0, rank, ranks)
    except ValueError as error:
        found["units of their own"] = str(error), []
    untied = hugging_face.sharded_by_accelerate(model_of(folder, tie_word_embeddings=False), asked_to_reshard(folder))
    return found, *([(names, given.get("reshard_after_forward")) for names, given in each] for each in (calls, untied))


def asked_to_reshard(folder):
    return hugging_face.training_arguments(folder, fsdp=True, fsdp_config={"reshard_after_forward": True})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    hugging_face.require()
    folder = tmp_path_factory.mktemp("hugging_face") / "pretrained"
    model_of().save_pretrained(folder)
    return folder


@pytest.mark.night
def test_every_way_trains_like_one_process_and_trainer_on_cpus_does_not_shard(folder):
    (found, calls, untied), *_ = launch(on_ranks, 2, folder, device="cpu", stream=False)
    expected = hugging_face.losses_of(model_of(folder), 0)
    apart = found.pop("units of their own")
    assert {name: kind for name, (kind, _) in found.items()} == {
        "accelerate": "FSDPQwen3ForCausalLM of DTensors",
        "Trainer": "DistributedDataParallel of Parameters",
        "native": "FSDPQwen3ForCausalLM of DTensors",
    }
    assert all(losses == pytest.approx(expected, abs=1e-5) for _, losses in found.values())
    tail = (["model.norm", "model.embed_tokens", "lm_head"], False)
    assert calls == [(["model.layers.0"], False), (["model.layers.1"], False), tail, (["the model"], None)]
    apart_from_layers = [(["model.embed_tokens"], True), (["model.norm", "lm_head"], False), (["the model"], None)]
    assert untied[2:] == apart_from_layers
    if torch.__version__ >= "2.13":
        assert "shared with a parameter already managed by another FSDP group" in apart[0]


def loaded(load, folder):
    """Return the messages that a rank sends while the lesson's `load` runs, and whether the model is then right."""
    from torch.distributed.fsdp import fully_shard

    from shardlab.measure.traffic import record_traffic

    hugging_face.require()
    model = model_of()
    model.requires_grad_(False)
    fully_shard(model)
    for p in model.parameters():
        p.to_local().zero_()
    with record_traffic() as traffic:
        load(model, folder)
    same = zip(model.parameters(), model_of(folder).parameters(), strict=True)
    return traffic.count(), all([torch.equal(p.full_tensor(), whole) for p, whole in same])


@pytest.mark.parametrize(("row", "sends"), [("p.shape[1:]", False), ("p[0]", True)])
def test_the_lessons_loader_sends_no_message_and_indexing_a_parameter_would(tmp_path, row, sends):
    hugging_face.require()
    model_of().save_pretrained(tmp_path, max_shard_size="50KB")  # several files, so that there is an index
    lesson = nbformat.read(ROOT / "course" / "20_a_real_model.ipynb", as_version=4)
    code = "\n".join(c.source for c in code_cells(lesson) if c.source.startswith(("INDEX =", "DTYPES =")))
    code = code.split("\n\nwhere =")[0] + code[code.index("\nDTYPES") :]
    assert "p.shape[1:].numel()" in code
    load = defined(code.replace("p.shape[1:]", row), "load", torch=torch, json=json, dist=dist)
    for messages, right in launch(loaded, 2, load, tmp_path, device="cpu", stream=False):
        assert right
        assert (messages > 0) == sends


def test_memory_before_sharding_unties_a_model_and_zeroed_buffers_change_the_loss(folder):
    right = hugging_face.losses_of(model_of(folder), 0)
    stale = model_of(folder)
    for buffer in stale.buffers():
        buffer.zero_()
    assert abs(hugging_face.losses_of(stale, 0)[0] - right[0]) > 1e-4
    with torch.device("meta"):
        model = model_of()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.to_empty(device="cpu")
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_cpu_offload_becomes_a_policy():
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True)
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy)


def test_what_differs_is_called_wrong(capsys):
    hugging_face.compare("same", [5.0, 4.0], [5.0, 4.0])
    hugging_face.compare("other", [5.0, 4.001], [5.0, 4.0])
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()] == ["equal", "wrong from step 2 on"]


def test_a_missing_package_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setattr(hugging_face, "find_spec", lambda name: None if name == "transformers" else name)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs transformers: pip install 'transformers>=5.24,<6' accelerate"
    ):
        hugging_face.require()
