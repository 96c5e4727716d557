"""Regressions of FSDP1 and FSDP2: each case behaves as under torch's engine, or is refused by name."""

from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp as theirs
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from two_layers import backward, two_layers

from shardlab import fsdp as ours
from shardlab import launch
from shardlab.measure.traffic import record_traffic

CPU = torch.device("cpu")


def beside_torchs(case, *arguments) -> tuple[list, list]:
    """What the case gives on two ranks under our wrapper, and under torch's."""
    name = (case.__name__, *arguments)
    return [mine[name] for mine, _ in all_cases()], [torchs[name] for _, torchs in all_cases()]


@cache
def all_cases() -> list:
    """In one launch; of each rank two dictionaries."""
    cases = [(frozen_after_wrapping,), (sent_for_frozen,), (channels_last,)]
    cases += [(case, orig) for case in (thawed_after_wrapping, norms_after_zero_grad) for orig in (True, False)]
    cases += [(norms, factor) for factor in (100.0, 10000.0)]
    cases += [(norm_with_an_inner_replica, norm_type) for norm_type in (2.0, "inf")]

    def under(wrapper):
        return {(case.__name__, *arguments): case(wrapper, *arguments) for case, *arguments in cases}

    return launch(lambda: (under(ours.FullyShardedDataParallel), under(theirs.FullyShardedDataParallel)), 2)


def frozen_after_wrapping(wrapper) -> dict[str, bool]:
    """Which parameters of this rank a step changes."""
    model = wrapper(two_layers(), device_id=CPU, use_orig_params=True)
    dict(model.module.named_parameters())["0.weight"].requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    return {name: bool((p.detach() != before[name]).any()) for name, p in model.module.named_parameters()}


def test_what_is_frozen_after_wrapping_stays_as_it_is():
    found, torchs = beside_torchs(frozen_after_wrapping)
    assert found == torchs
    assert [True in rank.values() for rank in found] == [True, True]


def thawed_after_wrapping(wrapper, use_orig_params) -> list[bool]:
    """Which parameters of this rank a step changes."""
    model = two_layers()
    model[0].requires_grad_(False)
    policy = theirs.wrap.ModuleWrapPolicy({nn.Linear})
    model = wrapper(model, device_id=CPU, auto_wrap_policy=policy, use_orig_params=use_orig_params)
    model.requires_grad_(True)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    return [bool((p.detach() != old).any()) for p, old in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_what_is_thawed_after_wrapping_is_trained(use_orig_params):
    found, torchs = beside_torchs(thawed_after_wrapping, use_orig_params)
    assert found == torchs
    assert all(any(rank) for rank in found)


def sent_for_frozen(wrapper) -> dict[str, int]:
    """Of a backward whose first layer was frozen after wrapping."""
    policy = theirs.wrap.ModuleWrapPolicy({nn.Linear})
    model = wrapper(two_layers(), device_id=CPU, auto_wrap_policy=policy, use_orig_params=True)
    model.module[0].requires_grad_(False)
    loss = model(torch.ones(2, 4)).sum()
    with record_traffic() as traffic:
        loss.backward()
    return dict(traffic.kinds())


def test_nothing_is_sent_for_what_is_frozen_after_wrapping():
    found, torchs = beside_torchs(sent_for_frozen)
    assert found[0]["reduce_scatter"] == torchs[0]["reduce_scatter"] == 1


def norms_after_zero_grad(wrapper, use_orig_params) -> list[float]:
    """Of three equal steps that change nothing, gradients dropped between forward and backward."""
    model, found = wrapper(two_layers(), device_id=CPU, use_orig_params=use_orig_params), []
    for set_to_none in (True, False, True):
        loss = model(torch.ones(2, 4)).sum()
        model.zero_grad(set_to_none)
        loss.backward()
        found.append(float(model.clip_grad_norm_(1e9)))
    return found


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_gradients_may_be_dropped_between_forward_and_backward(use_orig_params):
    found, torchs = beside_torchs(norms_after_zero_grad, use_orig_params)
    assert found == torchs
    assert found[0][0] == found[0][1] == found[0][2]


def built_too_late(use_orig_params) -> str:
    model = ours.FullyShardedDataParallel(two_layers(), device_id=CPU, use_orig_params=use_orig_params)
    model(torch.ones(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    with pytest.raises(RuntimeError) as error:
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 4))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return str(error.value)


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_an_optimizer_that_is_built_after_a_forward_is_refused(use_orig_params):
    """The parameters that it finds are not the shards; torch's are, and it trains."""
    told = launch(built_too_late, 2, use_orig_params)[0]
    assert "the optimizer holds 0.weight whole" in told
    assert "torch.no_grad()" in told


def norms(wrapper, factor: float) -> tuple[float, float]:
    """Of 16-bit gradients, before they are clipped and afterwards."""
    model = wrapper(two_layers(torch.float16), device_id=CPU)
    backward(model, factor, torch.float16)
    return float(model.clip_grad_norm_(1.0)), float(model.clip_grad_norm_(1e9))


@pytest.mark.parametrize("factor", [100.0, 10000.0])
def test_gradients_are_clipped_by_a_norm_that_is_no_float16(factor):
    """The first one's square is too large; the second one itself, which is rounded to inf at the very end."""
    found, torchs = beside_torchs(norms, factor)
    for mine, other in zip(found, torchs, strict=True):
        assert mine == pytest.approx(other, rel=2e-3)
        assert mine[0] > 256
        assert mine[1] == pytest.approx(1.0, rel=2e-3)


def norm_of_one_element() -> tuple[float, torch.dtype]:
    """Two ranks share one element: the second has no gradient."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    model = ours.FullyShardedDataParallel(model, device_id=CPU, use_orig_params=True)
    model(torch.full((2, 1), 0.1, dtype=torch.float64)).sum().backward()
    norm = model.clip_grad_norm_(1.0)
    return float(norm), norm.dtype


def test_a_rank_without_a_gradient_has_the_norm_in_the_others_dtype():
    assert launch(norm_of_one_element, 2) == [(0.2, torch.float64)] * 2


def norm_with_an_inner_replica(wrapper, norm_type) -> float:
    model = two_layers()
    model[0] = wrapper(model[0], device_id=CPU, sharding_strategy=theirs.ShardingStrategy.NO_SHARD)
    model = wrapper(model, device_id=CPU)
    backward(model)
    return float(model.clip_grad_norm_(1e9, norm_type))


@pytest.mark.parametrize("norm_type", [2.0, "inf"])
def test_what_every_rank_holds_counts_once_in_the_norm(norm_type):
    found, torchs = beside_torchs(norm_with_an_inner_replica, norm_type)
    assert found == pytest.approx(torchs)


def channels_last(wrapper) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).to(memory_format=torch.channels_last)
    model = wrapper(model, device_id=CPU)
    model(torch.ones(2, 3, 8, 8) * (dist.get_rank() + 1)).sum().backward()
    return float(model.clip_grad_norm_(1e9))


def test_fsdp1_takes_parameters_in_any_order_of_memory():
    found, torchs = beside_torchs(channels_last)
    assert found == pytest.approx(torchs)


def in_16_bits(model, policy, **options) -> nn.Module:
    mixed = theirs.MixedPrecision(**options)
    return ours.FullyShardedDataParallel(model, device_id=CPU, auto_wrap_policy=policy, mixed_precision=mixed)


def wrongs() -> list[str]:
    """What they are told who shard what can't be."""
    transposed = two_layers()
    transposed[0].weight = nn.Parameter(transposed[0].weight.detach().t())
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    policy = partial(theirs.wrap.size_based_auto_wrap_policy, min_num_params=1)
    bf16 = torch.bfloat16
    told = []
    for call in (
        lambda: ours.fully_shard(transposed),
        lambda: in_16_bits(normed, policy, param_dtype=bf16),
        lambda: in_16_bits(normed, policy, reduce_dtype=bf16),
        lambda: in_16_bits(normed, policy, buffer_dtype=bf16),
        lambda: in_16_bits(two_layers(), None, param_dtype=bf16, keep_low_precision_grads=True),
    ):
        with pytest.raises(ValueError) as error:
            call()
        told.append(str(error.value))
    return told


def test_what_is_refused_is_named():
    transposed, *normed, kept = launch(wrongs, 2)[0]
    assert "0.weight" in transposed
    assert "make it contiguous" in transposed
    assert all("1 is a BatchNorm1d" in told for told in normed)
    assert "keep_low_precision_grads" in kept


def views_of_one_vector() -> list[bool]:
    model = two_layers(width=5)  # 30 elements each: the second one begins at 120 bytes, its bias at 220
    vector_to_parameters(parameters_to_vector(model.parameters()), model.parameters())
    ours.fully_shard(model)
    backward(model, width=5)
    return [p.grad is not None for p in model.parameters()]


def test_parameters_may_be_views_of_one_vector():
    assert all(launch(views_of_one_vector, 2)[0])


def others_after_a_failure() -> float:
    """A gather that fails is the business of its model alone."""
    failing, other = two_layers(), nn.Linear(1, 1)
    ours.fully_shard(failing)
    failing._unit.layouts[0].all_gather_tensors = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        backward(failing)
    other(torch.ones(1, 1)).backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    return float(other.weight.grad)


def test_a_failed_gather_stops_no_other_optimizer():
    assert launch(others_after_a_failure, 2) == [1.0, 1.0]
