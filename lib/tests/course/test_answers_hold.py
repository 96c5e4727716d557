"""What the answers say of torch without a cell that shows it: here torch itself says it."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.run import get_args_parser
from torch.distributed.tensor import Partial, Replicate, distribute_tensor, init_device_mesh

from shardcourse.repository import ROOT
from shardlab import launch

OPTIONS = {name: action for action in get_args_parser()._actions for name in action.option_strings}
PAGES = ["course/questions.md", "course/messages.md", "course/train.py"]


def on_two_ranks():
    """Return what a layer that was unfrozen under DDP, a plain part of a DTensor, and a skipped expert come to."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[0].requires_grad_(False)
    ddp = nn.parallel.DistributedDataParallel(layers)
    layers[0].requires_grad_(True)
    ddp(torch.full((1, 4), 1.0 + dist.get_rank())).sum().backward()
    unfrozen, from_the_start = (layer.weight.grad.sum().item() for layer in layers)

    mesh, gradients = init_device_mesh("cpu", (2,)), []
    for said in ({}, {"grad_placements": [Partial()]}):
        w = nn.Parameter(distribute_tensor(torch.ones(1), mesh, [Replicate()]))
        (w.to_local(**said) * (1 + dist.get_rank())).sum().backward()
        gradients.append(w.grad.full_tensor().item())

    experts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
    for i, expert in enumerate(experts):
        nn.init.constant_(expert.weight, 1.0 + i)
        fully_shard(expert)
    mixed = experts[dist.get_rank()](torch.eye(2)).T.tolist()  # each rank uses the expert that the other skips
    return unfrozen, from_the_start, gradients, mixed


def test_what_the_answers_say_of_torch_is_so():
    (unfrozen, reduced, gradients, mixed), other = launch(on_two_ranks, 2, device="cpu")
    assert unfrozen != other[0] and reduced == other[1], "a layer that was unfrozen after DDP was built is not reduced"
    assert gradients == [1, 3] and other[2] == [2, 3], "without grad_placements, to_local() adds nothing up"
    assert mixed == other[3] == [[1, 1], [2, 2]], "a gather mixes the rows of two experts"


def ddp_gradient(wrong):
    """Return the reduced gradient's sum on this rank; if `wrong`, rank 1 computes a wrong forward."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    ddp = nn.parallel.DistributedDataParallel(layer)
    if wrong and dist.get_rank() == 1:
        layer.register_forward_hook(lambda layer, args, output: output + 1)
    ddp(torch.ones(1, 4)).square().sum().backward()
    return layer.weight.grad.sum().item()


def test_an_error_before_the_all_reduce_leaves_replicas_equal():
    """Lesson 13b, section 4: comparing the weights of DDP's replicas does not find it."""
    (found, right), (other, _) = launch(lambda: (ddp_gradient(True), ddp_gradient(False)), 2, device="cpu")
    assert found == other != right


def test_what_the_answers_say_of_torchruns_signals_is_so():
    pages = {page: (ROOT / page).read_text() for page in PAGES}
    assert not [page for page, text in pages.items() if "signal=B:" in text], "only the batch shell would get it"
    assert "SIGTERM" in OPTIONS["--signals-to-handle"].default and "USR1" not in OPTIONS["--signals-to-handle"].default
    seconds = {found for text in pages.values() for found in re.findall(r"kills its ranks (\d+) s", text)}
    assert seconds == {"30"} and all("--shutdown-timeout=" in text for text in pages.values())
    if "--shutdown-timeout" not in OPTIONS:
        pytest.skip("torchrun of this torch has no --shutdown-timeout")
    assert "defaults to 30 seconds" in " ".join(OPTIONS["--shutdown-timeout"].help.split())
