"""What the code decides where there are GPUs, with torch.cuda's answers made up."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from shardlab.launch import api
from shardlab.measure import step_time
from shardlab.model import _capability
from shardlab.state import checkpoint, full_state
from shardlab.tier import Card, cards_here


@pytest.fixture
def node(monkeypatch):
    """Call it with torch.cuda's answers, by the name of the function."""
    for name in ("SHARDLAB_DEVICE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def answers(**said) -> None:
        for name, value in {"is_available": True, **said}.items():
            monkeypatch.setattr(torch.cuda, name, value if callable(value) else lambda *_, value=value: value)

    return answers


def settings(world_size: int):
    return api.settings_of(world_size, None, None, None, 1, 10.0)


def test_each_rank_of_a_node_has_its_own_gpu_and_nccl(node):
    node(device_count=4, current_device=2)
    assert (settings(4).device, settings(4).backend) == ("cuda", "cpu:gloo,cuda:nccl")
    assert settings(5).backend == "gloo"  # two of them share a GPU
    assert api.local_device() == torch.device("cuda", 2)


def test_a_node_of_a_larger_job_counts_its_own_ranks(node, monkeypatch):
    node(device_count=4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert settings(16).backend == "cpu:gloo,cuda:nccl"


def test_ranks_that_were_launched_for_cpus_stay_there(node, monkeypatch):
    node(device_count=4)
    monkeypatch.setenv("SHARDLAB_DEVICE", "cpu")
    assert api.local_device() == torch.device("cpu") and settings(4).device == "cpu"


def test_cards_are_what_torch_reports(node):
    card = SimpleNamespace(name="T4", total_memory=15 << 30, major=7, minor=5)
    node(device_count=2, get_device_properties=lambda index: card)
    assert cards_here() == [Card("T4", 15 << 30, (7, 5))] * 2


def test_a_tensors_capability_is_its_cards(node):
    node(get_device_capability=lambda device: {"cuda:1": (9, 0)}[device])
    assert _capability(SimpleNamespace(is_cuda=True, device="cuda:1")) == (9, 0)
    assert _capability(torch.ones(1)) == (0, 0)


def test_a_timed_step_waits_for_the_gpu(node):
    waited = []
    node(synchronize=lambda: waited.append(True))
    step_time._synchronize_device()
    assert waited == [True]


def test_a_checkpoint_has_the_gpus_generator_too(node):
    given = []
    node(get_rng_state=lambda: torch.tensor([7]), set_rng_state=given.append)
    state = checkpoint._random_state()
    checkpoint._set_random_state(state)
    assert state.keys() == {"cpu", "cuda"} and given == [torch.tensor([7])]
    node(is_available=False)
    checkpoint._set_random_state(state)  # on a machine without a GPU its state is passed over
    assert len(given) == 1


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("cpu:gloo,cuda:nccl", "cpu"), ("gloo", "cpu")])
def test_whole_states_travel_where_the_backend_can_send_them(monkeypatch, backend, device):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    assert full_state._wire_device() == device
