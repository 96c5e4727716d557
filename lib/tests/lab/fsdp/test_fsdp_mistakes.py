"""Mistakes end in errors that name the rank, the parameter and the way out."""

import copy

import pytest
import torch
import torch.distributed as dist
from sharding import adamw, backward, shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from training import uneven

from shardlab import launch
from shardlab.fsdp import FlatParameter, fully_shard


def optimizer_first():
    model = uneven()
    optimizer = adamw(model)
    shard(model)
    backward(model, 0)
    optimizer.step()


def keeps_a_reference():
    model, kept = shard(uneven()), []
    model.blocks[0].up.register_forward_hook(lambda m, args, out: kept.append(m.weight))
    backward(model, 0)
    kept[0] * 2


def keeps_a_list(**options):
    """Made before sharding: the list's parameter is the old one, whole, and no optimizer would step it."""
    model = uneven()
    kept = [model.output.weight]
    model.output.forward = lambda x: nn.functional.linear(x, *kept)
    backward(shard(model, **options), 0)


def keeps_a_list_flat():
    keeps_a_list(layout=FlatParameter)


def calls_inside():
    model = shard(uneven())
    backward(model, 0)
    model.blocks[1].up(torch.zeros(2, 9, dtype=torch.float64))


def calls_inside_flat():
    model = shard(uneven(), layout=FlatParameter)
    model.blocks[1].up(torch.zeros(2, 9, dtype=torch.float64))


def twice():
    model = shard(uneven())
    fully_shard(model.blocks[1])


def parent_first(**options):
    model = fully_shard(uneven(), **options)
    fully_shard(model.blocks[0], **options)


def parent_first_flat():
    parent_first(layout=FlatParameter)


def container():
    fully_shard(uneven().blocks)


def tied_across():
    model = uneven(tied=True)
    fully_shard(model.embedding)
    fully_shard(model)


def scalar():
    model = uneven()
    model.temperature = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    shard(model)


def trained_in_two_dtypes():
    model = uneven()
    model.blocks[0].up.float()
    shard(model)


def inner_first():
    model = shard(uneven())
    model.blocks[0](torch.zeros(2, 9, dtype=torch.float64))
    backward(model, 0)


def still_on_meta():
    with torch.device("meta"):
        model = shard(uneven())
    backward(model, 0)


def flat_on_meta():
    with torch.device("meta"):
        shard(uneven(), layout=FlatParameter)


def copies():
    copy.deepcopy(shard(uneven()))


def freezes_half_of_a_flat_parameter():
    model = shard(uneven(), layout=FlatParameter)
    model.unshard()
    model.embedding.requires_grad_(False)
    model.reshard()


def three_axes():
    shard(uneven(), mesh=None) and fully_shard(
        uneven(), mesh=init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("a", "b", "c"))
    )


def reshards_to_a_number():
    fully_shard(uneven(), reshard_after_forward=2)


MISTAKES = {
    optimizer_first: (
        RuntimeError,
        "the optimizer holds embedding.weight",
        "build the optimizer after fully_shard",
    ),
    keeps_a_reference: (RuntimeError, "blocks.0.up.weight was used after its unit was resharded", "unshard()"),
    keeps_a_list: (RuntimeError, "forward used output.weight as it was before sharding", "from its module"),
    keeps_a_list_flat: (RuntimeError, "forward used output.weight as it was before", "from its module"),
    calls_inside: (RuntimeError, "blocks.1.up was called while its unit blocks.1 is sharded", "call blocks.1,"),
    calls_inside_flat: (RuntimeError, "up was called while its unit", "unshard() before"),
    twice: (ValueError, "this FSDPMixer is sharded already", "once a module"),
    parent_first: (ValueError, "norm is sharded already, by a module around it", "inner modules first"),
    parent_first_flat: (ValueError, "Mixer is sharded already, by a module around it", "inner modules first"),
    container: (ValueError, "ModuleList has no forward", "each module inside"),
    tied_across: (ValueError, "weight is tied to weight of another unit", "fully_shard([a, b])"),
    scalar: (ValueError, "temperature is a scalar", "vector of one element"),
    trained_in_two_dtypes: (ValueError, "up.bias torch.float32", "convert one"),
    inner_first: (RuntimeError, "unit blocks.0 has run as a root", "the whole model first"),
    still_on_meta: (RuntimeError, "embedding.weight", "to_empty(device=...)"),
    flat_on_meta: (ValueError, "gain is on the meta device", "PerParameter"),
    copies: (RuntimeError, "can't be copied", "copy it before"),
    freezes_half_of_a_flat_parameter: (ValueError, "freeze or thaw embedding.weight, ", "together"),
    three_axes: (ValueError, "not 3", "1 axis (shard) or 2 (replicate, shard)"),
    reshards_to_a_number: (ValueError, "reshard_after_forward", "True, False or None"),
}


def test_mistakes_are_named():
    def ranks():
        found = {}
        for mistake in MISTAKES:
            try:
                mistake()
                found[mistake.__name__] = (None, "nothing")
            except Exception as e:
                found[mistake.__name__] = (type(e), str(e))
        return found

    for rank, found in enumerate(launch(ranks, 2)):
        for mistake, (kind, what, fix) in MISTAKES.items():
            raised, message = found[mistake.__name__]
            assert raised is kind, (mistake.__name__, message)
            assert what in message, mistake.__name__
            assert fix in message, (mistake.__name__, message)
            assert f"rank {rank}: " in message, (mistake.__name__, message)


DIFFERENCES = {
    "a value": (lambda m: m.blocks[1].up.weight.data[3, 3].add_(1e-12), "up.weight is [23, 9] torch.float64 trained"),
    "the last element": (lambda m: m.output.weight.data[-1, -1].mul_(2), "output.weight is [257, 9]"),
    "a shape": (lambda m: setattr(m.blocks[0], "up", nn.Linear(9, 24, dtype=torch.float64)), "up.weight is [24, 9]"),
    "a dtype": (lambda m: m.blocks[2].float(), "{first} torch.float32 trained"),
    "frozen": (lambda m: m.blocks[2].norm.weight.requires_grad_(False), "norm.weight is [9] torch.float64, checksum"),
    "another one": (lambda m: m.register_parameter("more", nn.Parameter(torch.zeros(3).double())), "more is [3]"),
}


@pytest.mark.parametrize(("world_size", "options"), [(3, {}), (2, {"layout": FlatParameter}), (4, {"mesh": (2, 2)})])
def test_a_parameter_that_differs_between_ranks_is_named(world_size, options):
    """On all ranks."""

    def ranks():
        found = {}
        if "mesh" in options:
            options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for name, (change, _) in DIFFERENCES.items():
            model = uneven()
            if dist.get_rank() == 1:
                change(model)
            try:
                for block in model.blocks:
                    fully_shard(block, **options)
                fully_shard(model, **options)
                found[name] = "nothing"
            except ValueError as e:
                found[name] = str(e)
        return found

    first = "gain is [1]" if options.get("layout") is FlatParameter else "norm.weight is [9]"  # of a block's parameters
    for rank, found in enumerate(launch(ranks, world_size)):
        for name, (_, what) in DIFFERENCES.items():
            what = what.format(first=first)
            assert ("here " if rank == 1 else "on rank 1 ") + what in found[name], (rank, name, found[name])
            assert f"rank {rank}: " in found[name]


def test_right_programs_raise_nothing():
    """References to shards, a second optimizer, evaluation of one block by hand: all of it is allowed."""

    def ranks():
        first = shard(uneven())
        model = shard(uneven())
        shards = list(model.parameters())
        optimizer = adamw(model)
        backward(model, 0)
        optimizer.step()
        model.blocks[0].unshard()
        up = model.blocks[0].up(torch.zeros(2, 9, dtype=torch.float64))
        model.blocks[0].reshard()
        del first
        plain = nn.Linear(2, 2)
        plain(torch.ones(2)).sum().backward()
        torch.optim.SGD(plain.parameters(), lr=0.1).step()
        return up.shape, all(a is b for a, b in zip(shards, model.parameters(), strict=True))

    assert launch(ranks, 2) == [((2, 23), True)] * 2


def test_slices_of_a_sharded_container_are_no_units():
    def ranks():
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        fully_shard(model)
        return type(model).__name__, type(model[:2]).__name__

    assert launch(ranks, 1) == [("FSDPSequential", "Sequential")]
