"""Regressions of fully_shard, in both layouts: each case behaves as under torch's engine, or is refused by name."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from sharding import shard
from torch import nn
from torch.distributed import fsdp as theirs
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from training import CLOSE, samples, train, train_alone, uneven
from two_layers import backward, two_layers

from shardlab import fsdp as ours
from shardlab import launch
from shardlab.fsdp import FlatParameter, PerParameter
from shardlab.grad_norm import clip_grad_norm_

CPU = torch.device("cpu")
LAYOUTS = {"each": PerParameter, "flat": FlatParameter}


def in_both_layouts(case, *arguments) -> dict[str, list]:
    """What the case gives on two ranks, under torch's FSDP1 ("torch") and in both layouts of ours."""

    def ranks():
        found = {"torch": case(lambda m: theirs.FullyShardedDataParallel(m, device_id=CPU), *arguments)}
        for name, layout in LAYOUTS.items():
            found[name] = case(lambda m, layout=layout: ours.fully_shard(m, layout=layout), *arguments)
        return found

    by_rank = launch(ranks, 2)
    return {name: [rank[name] for rank in by_rank] for name in by_rank[0]}


def clip(model: nn.Module, max_norm: float, norm_type=2.0) -> torch.Tensor:
    if isinstance(model, theirs.FullyShardedDataParallel):
        return model.clip_grad_norm_(max_norm, norm_type)
    return clip_grad_norm_(model.parameters(), max_norm, norm_type)


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.to_local() if hasattr(p, "to_local") else p).detach().clone()


def thawed_after_sharding(wrap) -> bool:
    """Whether a step changes anything on this rank."""
    model = two_layers().requires_grad_(False)
    model = wrap(model)
    model.requires_grad_(True)
    before = [whole(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    return any(bool((whole(p) != old).any()) for p, old in zip(model.parameters(), before, strict=True))


def test_what_is_thawed_after_sharding_is_trained():
    found = in_both_layouts(thawed_after_sharding)
    assert found == {"torch": [True, True], "each": [True, True], "flat": [True, True]}


def freezes_and_thaws(model: nn.Module, train, place, modules) -> list[float]:
    """The losses of a training in which `modules(model)` are frozen for two steps; `place` says where it is done."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(model, optimizer, 1)
    for first, trains in ((1, False), (3, True)):
        place(model, lambda trains=trains: [m.requires_grad_(trains) for m in modules(model)])
        losses += train(model, optimizer, 2, first=first)
    return losses


FROZEN = {
    "each": lambda m: [m.blocks[1], m.blocks[2].up, m.embedding],
    "flat": lambda m: [m.blocks[1]],  # all of its parameters, or none
}


def between_steps(model, change):
    change()


def while_whole(model, change):
    """After a forward without a backward, which leaves whole what is not resharded after forward."""
    model(*samples(99, 0, 1))
    change()


def after_unshard(model, change):
    units = [m for m in model.modules() if hasattr(m, "unshard")]
    for m in units:
        m.unshard()
    change()
    for m in units:
        m.reshard()


@pytest.mark.parametrize("place", [between_steps, while_whole, after_unshard])
def test_what_is_frozen_or_thawed_stays_so_wherever_the_parameters_are(place):
    def ranks():
        found = {}
        for name, layout in LAYOUTS.items():
            for reshards in (True, False):
                model = shard(uneven(), layout=layout, reshard_after_forward=reshards)
                found[name, reshards] = freezes_and_thaws(model, train, place, FROZEN[name])
        return found

    def alone():
        def train(model, optimizer, steps, first=0):
            return train_alone(model, optimizer, 2, steps, first=first)

        return {name: freezes_and_thaws(uneven(), train, between_steps, FROZEN[name]) for name in LAYOUTS}

    [expected] = launch(alone, 1)
    for found in launch(ranks, 2):
        for (name, reshards), losses in found.items():
            assert losses == pytest.approx(expected[name], rel=CLOSE["rtol"]), (name, reshards)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_optimizer_that_is_built_after_a_forward_is_refused(layout):
    """The parameters that it finds are not the shards."""

    def built_too_late() -> str:
        model = ours.fully_shard(two_layers(), layout=LAYOUTS[layout])
        model(torch.ones(2, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward(model)
        with pytest.raises(RuntimeError) as error:
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 4))
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return str(error.value)

    told = launch(built_too_late, 2)[0]
    assert "the optimizer holds 0.weight whole" in told
    assert "torch.no_grad()" in told


def norms(wrap, factor: float) -> tuple[float, float]:
    """Of 16-bit gradients, before they are clipped and afterwards."""
    model = wrap(two_layers(torch.float16))
    backward(model, factor, torch.float16)
    return float(clip(model, 1.0)), float(clip(model, 1e9))


@pytest.mark.parametrize("factor", [100.0, 10000.0])
def test_gradients_are_clipped_by_a_norm_that_is_no_float16(factor):
    """The first one's square is too large; the second one itself, which is rounded to inf at the very end."""
    found = in_both_layouts(norms, factor)
    for name in LAYOUTS:
        for mine, other in zip(found[name], found["torch"], strict=True):
            assert mine == pytest.approx(other, rel=2e-3)
            assert mine[0] > 256
            assert mine[1] == pytest.approx(1.0, rel=2e-3)


def norm_of_one_element() -> tuple[float, torch.dtype]:
    """Two ranks share one element: the second has none of it."""
    model = ours.fully_shard(nn.Linear(1, 1, bias=False, dtype=torch.float64))
    model(torch.full((2, 1), 0.1, dtype=torch.float64)).sum().backward()
    norm = clip_grad_norm_(model.parameters(), 1.0)
    return float(norm), norm.dtype


def test_a_rank_without_a_gradient_has_the_norm_in_the_others_dtype():
    assert launch(norm_of_one_element, 2) == [(0.2, torch.float64)] * 2


def norm_with_an_inner_replica(norm_type, wrap_inner, wrap) -> float:
    model = two_layers()
    model[0] = wrap_inner(model[0])
    model = wrap(model)
    backward(model)
    return float(clip(model, 1e9, norm_type))


@pytest.mark.parametrize("norm_type", [2.0, "inf"])
def test_what_every_rank_holds_counts_once_in_the_norm(norm_type):
    def ranks():
        replicas = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        alone = {"device_id": CPU, "sharding_strategy": theirs.ShardingStrategy.NO_SHARD}
        found = [
            norm_with_an_inner_replica(
                norm_type,
                lambda m: theirs.FullyShardedDataParallel(m, **alone),
                lambda m: theirs.FullyShardedDataParallel(m, device_id=CPU),
            )
        ]
        for layout in LAYOUTS.values():
            inner = lambda m, layout=layout: ours.fully_shard(m, mesh=replicas, layout=layout)  # noqa: E731
            outer = lambda m, layout=layout: ours.fully_shard(m, layout=layout)  # noqa: E731
            found.append(norm_with_an_inner_replica(norm_type, inner, outer))
        return found

    for torchs, each, flat in launch(ranks, 2):
        assert each == pytest.approx(torchs) and flat == pytest.approx(torchs)


def channels_last() -> list[float]:
    """Norms under torch's FSDP1 and in the flat layout, which takes parameters in any order of memory."""
    found = []
    for wrap in (
        lambda m: theirs.FullyShardedDataParallel(m, device_id=CPU),
        lambda m: ours.fully_shard(m, layout=FlatParameter),
    ):
        torch.manual_seed(0)
        conv, linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 2)
        model = wrap(nn.Sequential(conv, nn.Flatten(), linear).to(memory_format=torch.channels_last))
        model(torch.ones(2, 3, 8, 8) * (dist.get_rank() + 1)).sum().backward()
        found.append(float(clip(model, 1e9)))
    return found


def test_the_flat_layout_takes_parameters_in_any_order_of_memory():
    for torchs, flat in launch(channels_last, 2):
        assert flat == pytest.approx(torchs)


def transposed() -> str:
    model = two_layers()
    model[0].weight = nn.Parameter(model[0].weight.detach().t())
    with pytest.raises(ValueError) as error:
        ours.fully_shard(model)
    return str(error.value)


def test_a_parameter_that_is_not_contiguous_is_named():
    told = launch(transposed, 2)[0]
    assert "0.weight" in told
    assert "make it contiguous" in told


def views_of_one_vector() -> list[bool]:
    model = two_layers(width=5)  # 30 elements each: the second one begins at 120 bytes, its bias at 220
    vector_to_parameters(parameters_to_vector(model.parameters()), model.parameters())
    ours.fully_shard(model)
    backward(model, width=5)
    return [p.grad is not None for p in model.parameters()]


def test_parameters_may_be_views_of_one_vector():
    assert all(launch(views_of_one_vector, 2)[0])


def after_setting_data(wrap) -> float:
    """Train, set every parameter's `data` to another tensor, and train on: what the model then makes of ones."""
    model = wrap(two_layers(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4, dtype=torch.float64)).pow(2).sum().backward()
        optimizer.step()
        for p in model.parameters():
            p.data = p.data * 0.5
    with torch.no_grad():
        return float(model(torch.ones(1, 4, dtype=torch.float64)).sum())


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_flat_parameter_whose_data_is_set_trains_on(world_size):
    def ranks():
        return [after_setting_data(wrap) for wrap in (lambda m: m, partial(ours.fully_shard, layout=FlatParameter))]

    for alone, flat in launch(ranks, world_size):
        assert flat == pytest.approx(alone, rel=CLOSE["rtol"])


def after_a_dropped_batch(layout) -> list[bool]:
    """A micro-batch whose gradients were not reduced is dropped; the next one's gradients are alone."""
    expected, model = two_layers(), ours.fully_shard(two_layers(), layout=layout)
    backward(expected)
    for p in expected.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    model.set_requires_gradient_sync(False)
    backward(model, factor=7.0)
    model.zero_grad()
    model.set_requires_gradient_sync(True)
    backward(model)
    norms = [clip_grad_norm_(m.parameters(), 1e9) for m in (model, expected)]
    return [torch.allclose(*norms)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_micro_batch_that_was_not_reduced_can_be_dropped(layout):
    assert launch(after_a_dropped_batch, 2, LAYOUTS[layout]) == [[True], [True]]


def others_after_a_failure() -> float:
    """A gather that fails is the business of its model alone."""
    failing, other = two_layers(), nn.Linear(1, 1)
    ours.fully_shard(failing)
    failing._fsdp_unit.layouts[0].all_gather_tensors = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        backward(failing)
    other(torch.ones(1, 1)).backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    return float(other.weight.grad)


def test_a_failed_gather_stops_no_other_optimizer():
    assert launch(others_after_a_failure, 2) == [1.0, 1.0]
