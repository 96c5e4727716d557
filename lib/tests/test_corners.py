"""Corners in which an implementation is easily another one than torch's: each is the same, or refused by name."""

import sys
from functools import partial
from tempfile import gettempdir

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp as theirs
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardlab.parallel import fsdp as ours
from shardlab.parallel.ddp import DDP
from shardlab.parallel.offload import CPUOffloadOptimizer, FileOffloadOptimizer
from shardlab.parallel.precision import GradScaler, MasterWeights
from shardlab.parallel.recompute import apply_activation_checkpointing, checkpoint
from shardlab.parallel.zero import ShardedDataParallel, ZeroRedundancyOptimizer

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CPU = torch.device("cpu")


def two_layers(dtype=torch.float32, width=4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)).to(dtype)


def backward(model: nn.Module, factor: float = 1.0, dtype=torch.float32, width=4) -> None:
    model(factor * (dist.get_rank() + 1) * torch.ones(2, width, dtype=dtype)).sum().backward()


class Sliced(nn.Module):
    """A weight and a buffer that are parts of something larger, other ones on each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.weight = nn.Parameter(torch.randn(4, 8)[:, :4])
        self.register_buffer("shift", torch.randn(4, 4).t())

    def forward(self, x):
        return x @ self.weight + self.shift


# DDP


def first_outputs(wrapper, **options) -> list:
    return wrapper(Sliced(), **options)(torch.eye(4)).tolist()


def test_rank_0s_values_arrive_whatever_their_strides():
    """Under FSDP1, too; torch's sends them from GPUs only."""
    synced = partial(first_outputs, ours.FullyShardedDataParallel, device_id=CPU, sync_module_states=True)
    torchs = launch(first_outputs, 2, DistributedDataParallel)
    assert torchs[0] == torchs[1]
    assert launch(first_outputs, 2, DDP) == torchs
    assert launch(synced, 2) == torchs


def forwards_that_send(wrapper) -> tuple[list[bool], list]:
    """Which of some forwards send, and the buffers after all; the second rank evaluates more batches than the first."""
    torch.manual_seed(0)
    model, sent = wrapper(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), []

    def forward(train: bool) -> None:
        x = torch.randn(3, 4) * (dist.get_rank() + 1)
        with record_traffic() as traffic, torch.set_grad_enabled(train):
            output = model.train(train)(x)
        sent.append(traffic.count() > 0)
        if train:
            output.sum().backward()

    forward(train=True)
    with model.no_sync():
        for _ in range(2):
            forward(train=True)
    for _ in range(2):
        forward(train=True)
    for _ in range(2):
        forward(train=False)
    forward(train=True)
    for _ in range(1 + dist.get_rank()):
        forward(train=False)
    dist.barrier()
    return sent[:9], [b.tolist() for b in model.module.buffers()]


@pytest.mark.parametrize("wrapper", [DDP, lambda model: ShardedDataParallel(model, zero_1(model))])
def test_buffers_are_sent_after_forwards_that_send_gradients(wrapper):
    found = launch(forwards_that_send, 2, wrapper, timeout_s=100)
    assert found == launch(forwards_that_send, 2, DistributedDataParallel)


def expanded() -> str:
    model = two_layers()
    model.register_buffer("one", torch.ones(1, 1).expand(4, 4))
    with pytest.raises(RuntimeError) as error:
        DDP(model)
    return str(error.value)


def test_a_tensor_that_overlaps_itself_is_refused():
    assert all("more than one element" in told for told in launch(expanded, 2))


# FSDP


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
    found = launch(frozen_after_wrapping, 2, ours.FullyShardedDataParallel)
    assert found == launch(frozen_after_wrapping, 2, theirs.FullyShardedDataParallel)
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
    found = launch(thawed_after_wrapping, 2, ours.FullyShardedDataParallel, use_orig_params)
    assert found == launch(thawed_after_wrapping, 2, theirs.FullyShardedDataParallel, use_orig_params)
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
    found = launch(sent_for_frozen, 2, ours.FullyShardedDataParallel)
    torchs = launch(sent_for_frozen, 2, theirs.FullyShardedDataParallel)
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
    found = launch(norms_after_zero_grad, 2, ours.FullyShardedDataParallel, use_orig_params)
    assert found == launch(norms_after_zero_grad, 2, theirs.FullyShardedDataParallel, use_orig_params)
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
    found, torchs = (launch(norms, 2, module.FullyShardedDataParallel, factor) for module in (ours, theirs))
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
    found = launch(norm_with_an_inner_replica, 2, ours.FullyShardedDataParallel, norm_type)
    assert found == pytest.approx(launch(norm_with_an_inner_replica, 2, theirs.FullyShardedDataParallel, norm_type))


def channels_last(wrapper) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).to(memory_format=torch.channels_last)
    model = wrapper(model, device_id=CPU)
    model(torch.ones(2, 3, 8, 8) * (dist.get_rank() + 1)).sum().backward()
    return float(model.clip_grad_norm_(1e9))


def test_fsdp1_takes_parameters_in_any_order_of_memory():
    found = launch(channels_last, 2, ours.FullyShardedDataParallel)
    assert found == pytest.approx(launch(channels_last, 2, theirs.FullyShardedDataParallel))


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


# Offloading


def largest_gradient(make) -> float:
    optimizer = make(model := two_layers())
    backward(model)
    return float(optimizer.clip_grad_norm_(1.0, "inf"))


def test_the_largest_norm_may_be_asked_for_by_name():
    model = two_layers()
    model(torch.ones(2, 4)).sum().backward()
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0, "inf"))
    assert [launch(largest_gradient, 1, make)[0] for make in (offloaded, zero_1)] == [expected] * 2


def clipped(layout) -> float:
    model = two_layers()
    ours.fully_shard(model, layout=layout)
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    backward(model)
    return float(optimizer.clip_grad_norm_(0.5))


def test_the_norm_is_that_of_all_ranks_under_either_layout():
    per_parameter, flat = launch(clipped, 2, ours.PerParameter), launch(clipped, 2, ours.FlatParameter)
    assert per_parameter[0] == per_parameter[1] == pytest.approx(flat[0])
    assert flat[0] == flat[1]


def changes_under_ddp(build, view) -> list[float]:
    """Of each parameter in a step, alone; DDP comes first, and so do its hooks."""
    model = DDP(two_layers(), gradient_as_bucket_view=view)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    return [float((p.detach() - old).abs().sum()) for p, old in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("view", [False, True])
def test_a_gradient_that_left_for_the_host_does_not_come_back(view):
    offload = partial(CPUOffloadOptimizer, optimizer_class=torch.optim.SGD)
    assert launch(changes_under_ddp, 1, offload, view) == launch(changes_under_ddp, 1, torch.optim.SGD, view)


def clipped_in_float64() -> float:
    """Five rows on four ranks: the last one holds nothing."""
    model = two_layers(torch.float64, width=5)
    ours.fully_shard(model)
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    backward(model, 1.0, torch.float64, width=5)
    return float(optimizer.clip_grad_norm_(0.5))


def test_a_rank_without_rows_sends_the_others_dtype():
    assert len(set(launch(clipped_in_float64, 4))) == 1


def test_a_file_of_states_takes_no_more_parameters_and_none_that_can_not_be_cut():
    a, b = nn.Parameter(torch.ones(200)), nn.Parameter(torch.ones(200))
    optimizer = FileOffloadOptimizer([a], torch.optim.AdamW, gettempdir())
    with pytest.raises(RuntimeError, match="give all parameters at once"):
        optimizer.add_param_group({"params": [b]})
    optimizer = FileOffloadOptimizer([a, b.requires_grad_(False)], torch.optim.AdamW, gettempdir())
    for p in (a, b.requires_grad_(True)):
        p.grad = torch.ones(200)
        optimizer.step()
        assert (p != 1).all()
    with pytest.raises(ValueError, match=r"\[3, 2\] is not contiguous"):
        FileOffloadOptimizer([nn.Parameter(torch.ones(2, 3).t())], torch.optim.AdamW, gettempdir())


def scales(make) -> list[float]:
    """After each of three steps, the first of which overflows; gradients are dropped by the model."""
    model = two_layers()
    optimizer, scaler, found = make(model), GradScaler("cpu"), []
    for factor in (float("inf"), 1.0, 1.0):
        scaler.scale(model(factor * torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        found.append(scaler.get_scale())
    return found


def offloaded(model) -> torch.optim.Optimizer:
    return CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


def zero_1(model) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize("make", [offloaded, zero_1])
def test_an_overflow_is_over_when_the_model_drops_its_gradients(make):
    assert launch(scales, 2, make)[0] == [2.0**15] * 3


def test_a_scaled_step_takes_no_closure():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for scaler in (GradScaler("cpu"), torch.amp.GradScaler("cpu")):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        with pytest.raises(RuntimeError, match="Closure use is not"):
            scaler.step(optimizer, closure=lambda: None)


# By the changed import


def test_masters_of_an_optimizer_for_matrices():
    p = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterWeights([p], torch.optim.Muon, lr=0.1)
    p.grad = torch.eye(4, dtype=torch.bfloat16)
    optimizer.step()
    assert (p != 1).any()


def torchs_words() -> list[str]:
    DDP(two_layers(), device_ids=None, output_device=None)
    model = two_layers()
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.1)
    with pytest.raises(ValueError, match="rank 0: device_ids or output_device names"):
        DDP(two_layers(), device_ids=[0])
    return ["taken"]


def test_options_of_torchs_are_taken_or_refused_by_name():
    assert launch(torchs_words, 1) == [["taken"]]


def test_a_module_of_two_parents_is_checkpointed_once():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    model(torch.ones(2, 4)).sum().backward()
    assert model[0][0] is model[1][0] is shared
    assert isinstance(shared.forward, partial)


@pytest.mark.parametrize("of", [checkpoint, torchs_checkpoint])
def test_a_checkpoint_that_compares_nothing(of):
    """The second call saves a tensor of another dtype in the place of the first one's; by default that is refused."""
    dtypes = [torch.float32, torch.float64] * 2

    def function(x):
        return (x.to(dtypes.pop(0)).sin()).sum()

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError):
        of(function, x, use_reentrant=False).backward()
    of(function, x, use_reentrant=False, determinism_check="none").backward()
    assert x.grad.tolist() == pytest.approx(x.cos().tolist())


def test_a_checkpoint_without_an_early_stop_is_torchs_alone():
    with pytest.raises(ValueError, match="early_stop=False"):
        checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False, early_stop=False)
