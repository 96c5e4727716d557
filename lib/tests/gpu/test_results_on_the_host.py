"""What travels between ranks and launcher arrives on the CPU, so that a notebook opens no GPU.

A storage that says it is on a card stands in for one: tensors hold it, and torch pickles it with its device's name.
"""

import cloudpickle
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from shardlab.launch.pickling import dumps


class OnACard(torch.UntypedStorage):
    device = torch.device("cuda", 3)

    def cpu(self):
        copy = torch.UntypedStorage(self.nbytes())
        copy.copy_(self)
        return copy


def on_a_card(*values: float) -> torch.Tensor:
    """float32 tensor whose storage says it is on cuda:3."""
    host = torch.tensor(values)
    tensor = torch.empty(0).set_(OnACard(host.nbytes), 0, host.shape)
    tensor.copy_(host)
    return tensor


def module() -> nn.Module:
    linear = nn.Linear(2, 1)
    linear.weight = nn.Parameter(on_a_card(1, 2)[None])
    linear.register_buffer("seen", on_a_card(4))
    return linear


def dtensor() -> DTensor:
    mesh = DeviceMesh("cuda", [0, 1], _init_backend=False, _rank=0)
    whole = TensorMeta(torch.Size([4]), (1,), torch.float32)
    return DTensor(on_a_card(1, 2), DTensorSpec(mesh, (Shard(0),), whole), requires_grad=False)


WAYS = {
    "a tensor": (lambda: on_a_card(1, 2), lambda t: t),
    "a view": (lambda: on_a_card(0, 1, 2)[1:], lambda t: t),
    "in containers": (lambda: {"a": [(on_a_card(1, 2),)]}, lambda d: d["a"][0][0]),
    "a parameter": (lambda: nn.Parameter(on_a_card(1, 2)), lambda p: p.data),
    "a module": (module, lambda m: m.weight.data[0]),
    "a DTensor": (dtensor, lambda t: t._local_tensor),
    "a closure": (lambda: (lambda t: lambda: t)(on_a_card(1, 2)), lambda f: f()),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_arrives_on_the_cpu(way):
    make, tensor_in = WAYS[way]
    there = make()
    arrived = tensor_in(cloudpickle.loads(dumps(there)))
    assert arrived.untyped_storage().device.type == "cpu" and arrived.tolist() == [1, 2]


def test_the_original_stays_where_it_is():
    there = on_a_card(1, 2)
    dumps([there])
    assert there.untyped_storage().device.type == "cuda"


@pytest.mark.filterwarnings("error")
def test_no_warning_comes_of_it():
    dumps([torch.zeros(2), on_a_card(1)])


def test_what_has_no_data_keeps_its_device():
    assert cloudpickle.loads(dumps(torch.empty(3, device="meta"))).device.type == "meta"
