"""The flat layout, and FullyShardedDataParallel: equal to one process and to torch's FSDP1."""

import sys
from functools import partial
from itertools import product

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from test_fsdp import DTYPES, adamw, alone, differing, memory, shard, strategies
from test_fsdp_features import states
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from training import CLOSE, Mixer, decoder, samples, train, train_alone, uneven

from shardlab import launch
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.model import Block
from shardlab.parallel.fsdp import (
    FlatParameter,
    FSDPModule,
    FullyShardedDataParallel,
    flat_intervals,
    fully_shard,
)

for module in map(sys.modules.get, {__name__, *(f.__module__ for f in (adamw, states, train))}):
    cloudpickle.register_pickle_by_value(module)  # ranks need not import pytest

BLOCKS = ModuleWrapPolicy({Mixer, Block})
ALL = list(ShardingStrategy)
SHARDED = [s for s in ALL if s is not ShardingStrategy.NO_SHARD]


def wrap(model: nn.Module, with_=FullyShardedDataParallel, strategy=ShardingStrategy.FULL_SHARD, **options):
    if "HYBRID" in strategy.name:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if with_ is TorchFSDP:
        options["device_id"] = torch.device("cpu")
    return with_(model, sharding_strategy=strategy, auto_wrap_policy=BLOCKS, **options)


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters put together from all ranks' intervals; of replicas, whoever comes last."""
    mine = [
        (i.name, i.shape, i.start, i.shard.detach()[i.offset : i.offset + i.end - i.start].clone())
        for i in flat_intervals(model)
    ]
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole = {name: torch.full((shape.numel(),), float("nan"), dtype=t.dtype) for name, shape, _, t in mine}
    for name, _, start, part in (entry for entries in everyone for entry in entries):
        whole[name][start : start + len(part)] = part
    return {name: whole[name].view(shape) for name, shape, _, _ in mine}


# Equal to one process


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_equals_one_process(world_size):
    """20 steps of AdamW: losses and weights, under fully_shard and the wrapper, by every strategy."""

    def ranks():
        models = {n: partial(shard, layout=FlatParameter, **options) for n, options in strategies(world_size).items()}
        models["offloaded"] = partial(wrap, cpu_offload=CPUOffload(offload_params=True))
        for s in ALL if world_size == 4 else ALL[:3]:
            models[s.name] = partial(wrap, strategy=s)
            models[f"{s.name}, original"] = partial(wrap, strategy=s, use_orig_params=True)
        results = {}
        for name, make in models.items():
            model = make(uneven())
            results[name] = torch.tensor(train(model, adamw(model)), dtype=torch.float64), full_state(model)
        return results

    [(losses, weights)] = launch(alone, 1, world_size)
    same = {"rtol": 0, "atol": 0} if world_size <= 2 else CLOSE
    for results in launch(ranks, world_size):
        for found_losses, found in results.values():
            torch.testing.assert_close(found_losses, losses, **same)
            torch.testing.assert_close(found, weights, **same)


# Equal to torch


def compare(make, run, *, steps=3, same=torch.equal, **options) -> list[str]:
    """On a rank: train ours and torch's side by side; what differs."""
    models = [wrap(make(), with_, **options) for with_ in (FullyShardedDataParallel, TorchFSDP)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    found = []
    for step in range(steps):
        losses = [run(model, step) for model in models]
        found += [f"loss {step}"] * (not same(*losses))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    ours, theirs = full_state(models[0]), torch_state(models[1])
    assert ours.keys() == theirs.keys()
    return found + [name for name in ours if not same(ours[name], theirs[name])]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, **CLOSE)


def nearly(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def torch_state(model) -> dict[str, torch.Tensor]:
    with TorchFSDP.summon_full_params(model):
        return {n.replace("_fsdp_wrapped_module.", ""): p.detach().clone() for n, p in model.named_parameters()}


def backward(model: nn.Module, step: int) -> torch.Tensor:
    loss = model(*samples(step, dist.get_rank(), dist.get_world_size()))
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_equals_torch(world_size):
    """To the bit for powers of two: else torch's FSDP1 rounds in its own place, where it divides twice.

    But with original parameters torch aligns each to 16 bytes, so that some of odd sizes lie in another rank's shard
    than ours do: sums of four in another order.
    """

    def ranks():
        found = {}
        for make, strategy, orig in product((decoder, uneven), ALL if world_size == 4 else ALL[:3], (False, True)):
            same = close if make is uneven and orig and world_size == 4 else torch.equal
            options = {"strategy": strategy, "use_orig_params": orig, "same": same}
            found[f"{make.__name__} {strategy.name} {orig}"] = compare(make, backward, **options)
        return {case: differing for case, differing in found.items() if differing}

    assert launch(ranks, world_size) == [{}] * world_size


def test_parameters_lie_in_torchs_order():
    """A module's own before its children's. Else the ranks' sums, each in the order of its shard, differ in a bit."""

    def ranks():
        ours, theirs = (wrap(uneven(), with_) for with_ in (FullyShardedDataParallel, TorchFSDP))
        blocks = zip(ours.module.blocks, theirs.module.blocks, strict=True)
        return [([s.name for s in b._unit.layouts[0].slots], list(t._flat_param._fqns)) for b, t in blocks]

    for ours, theirs in launch(ranks, 1)[0]:
        assert ours == theirs == ["gain", *(f"{m}.{n}" for m in ("norm", "up", "down") for n in ("weight", "bias"))]


@pytest.mark.parametrize(("world_size", "strategy"), [(2, ALL[0]), (2, ShardingStrategy.NO_SHARD), (4, ALL[3])])
def test_mixed_precision_equals_torch(world_size, strategy):
    def ranks():
        policies = [MixedPrecision(param_dtype=p, reduce_dtype=r) for p in DTYPES for r in DTYPES]
        make = partial(decoder, n_layers=1)
        runs = {str(p): compare(make, backward, steps=2, mixed_precision=p, strategy=strategy) for p in policies}
        return {policy: found for policy, found in runs.items() if found}

    assert launch(ranks, world_size) == [{}] * world_size


# The wrapper's settings


def model_like_torchs(with_, **options) -> nn.Module:
    if with_ is TorchFSDP:
        options["device_id"] = torch.device("cpu")
    return with_(uneven(), **options)


def micro_batches(model, step):
    with model.no_sync():
        for i in range(2):
            backward(model, 3 * step + i)
    return backward(model, 3 * step + 2)


def micro_batches_nested(model, step):
    """The inner block's end does not end the outer one."""
    with model.no_sync():
        with model.no_sync():
            backward(model, 3 * step)
        backward(model, 3 * step + 1)
    return backward(model, 3 * step + 2)


def clipped(model, step, norm_type=2.0):
    loss = backward(model, step)
    return loss + model.clip_grad_norm_(0.1, norm_type)


def test_settings_train_as_under_torch():
    """no_sync, clipping and prefetching change when messages are sent, and what is done with gradients, as torch's do.

    Norms are sums of squares in another order than torch's.
    """
    cases = {
        "no_sync": (micro_batches, {}),
        "no_sync, nested": (micro_batches_nested, {}),
        "no_sync, shard grad op": (micro_batches, {"strategy": ShardingStrategy.SHARD_GRAD_OP}),
        "no_sync, no shard": (micro_batches, {"strategy": ShardingStrategy.NO_SHARD}),
        "clipped": (clipped, {"same": nearly}),
        "clipped, no shard": (clipped, {"same": nearly, "strategy": ShardingStrategy.NO_SHARD}),
        "clipped, original": (clipped, {"same": nearly, "use_orig_params": True}),
        "clipped by the largest": (partial(clipped, norm_type=float("inf")), {"same": nearly}),
        "prefetch after": (backward, {"backward_prefetch": BackwardPrefetch.BACKWARD_POST}),
        "no prefetch": (backward, {"backward_prefetch": None}),
        "forward prefetch": (backward, {"forward_prefetch": True}),
        "unlimited": (backward, {"limit_all_gathers": False}),
    }

    def ranks():
        found = {}
        for name, (run, options) in cases.items():
            make = decoder if "clipped" in name else uneven  # torch's norm is always in float32
            found[name] = compare(make, run, **options)
        return {name: differing for name, differing in found.items() if differing}

    assert launch(ranks, 2) == [{}] * 2


def test_when_the_wrapper_prefetches():
    """What state each block is in when another one's forward or backward runs: S, G or U."""

    def ranks():
        found = {}
        for name, options in {
            "pre": {},
            "post": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
            "none": {"backward_prefetch": None},
            "forward": {"forward_prefetch": True},
        }.items():
            model = wrap(uneven(), **options)
            backward(model, 0)  # the order of forward is learnt
            found[name] = states(model)
        return found

    forward = {"forward 0": "USS", "forward 1": "SUS", "forward 2": "SSU"}
    pre = {"backward 2": "SGU", "backward 1": "GUS", "backward 0": "USS"}
    alone = {"backward 2": "SSU", "backward 1": "SUS", "backward 0": "USS"}
    expected = {"pre": forward | pre, "post": forward | alone, "none": forward | alone}
    expected["forward"] = pre | {"forward 0": "UGS", "forward 1": "SUG", "forward 2": "SSU"}
    for found in launch(ranks, 2):
        assert found == expected


def test_policies_pick_what_torch_wraps():
    def ranks():
        policies = {
            "classes": BLOCKS,
            "custom": CustomPolicy(lambda m: isinstance(m, nn.Linear)),
            "size": partial(size_based_auto_wrap_policy, min_num_params=400),
            "size, leaves": partial(size_based_auto_wrap_policy, min_num_params=200),
            "transformer": partial(transformer_auto_wrap_policy, transformer_layer_cls={Mixer}),
        }
        found = {}
        for name, policy in policies.items():
            ours = model_like_torchs(FullyShardedDataParallel, auto_wrap_policy=policy)
            theirs = model_like_torchs(TorchFSDP, auto_wrap_policy=policy)
            units = [n for n, m in ours.module.named_modules() if isinstance(m, FSDPModule)]
            wrapped = [n for n, m in theirs.named_modules() if isinstance(m, TorchFSDP)]
            wrapped = [n.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", "") for n in wrapped]
            found[name] = (sorted(units), sorted(set(wrapped)))
        return found

    for found in launch(ranks, 2):
        for name, (ours, theirs) in found.items():
            assert ours == theirs, name
            assert len(ours) > 1, name


def test_states_are_synchronised_and_initialised():
    """Rank 0's weights for everybody, also on a 2-D mesh; from the meta device by a function, or by themselves."""

    def ranks():
        model = wrap(uneven(seed=dist.get_rank()), strategy=ShardingStrategy.HYBRID_SHARD, sync_module_states=True)
        same = differing(full_state(model), dict(uneven().named_parameters())) == []

        def ones(module):
            module.to_empty(device="cpu", recurse=False)
            for p in module.parameters(recurse=False):
                nn.init.ones_(p)

        with torch.device("meta"):
            linear, other = nn.Sequential(nn.Linear(5, 3)), nn.Sequential(nn.Linear(5, 3))
        wrapped = FullyShardedDataParallel(linear, param_init_fn=ones, device_id=torch.device("cpu"))
        torch.manual_seed(0)
        FullyShardedDataParallel(other)  # on the accelerator, or on the CPU where there is none
        return same, {float(t.sum()) for t in full_state(wrapped).values()}

    assert launch(ranks, 4) == [(True, {15.0, 3.0})] * 4


def test_wrappers_inside_wrappers():
    """The model's own attributes shine through, and names are the model's."""

    def ranks():
        model = uneven()
        for i, block in enumerate(model.blocks):
            model.blocks[i] = FullyShardedDataParallel(block)
        model = FullyShardedDataParallel(model)
        losses = train(model, adamw(model), 3)
        names = [i.name for i in flat_intervals(model)]
        return losses, sorted(names) == sorted(n for n, _ in uneven().named_parameters()), len(model.blocks)

    def alone():
        model = uneven()
        return train_alone(model, adamw(model), 2, 3)

    [losses] = launch(alone, 1)
    assert launch(ranks, 2) == [(losses, True, 3)] * 2


# Messages and memory


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_sent_and_kept(world_size):
    """Formula = ours, to the byte, and no more than torch's, which pads too. Psi is a unit's size, padded."""

    def cost(model):
        backward(model, 0)
        with record_traffic() as traffic:
            backward(model, 1)
        n = 2 if "_HYBRID" in model.name else world_size
        tracked = memory(model, lambda model: model(*samples(0, dist.get_rank(), world_size)))
        return dict(traffic.kinds()), sum(wire_bytes(c, n) for c in traffic.collectives), tracked

    def ranks():
        found = {}
        for strategy in [s for s in ALL if world_size == 4 or "HYBRID" not in s.name]:
            models = [wrap(uneven(), w, strategy) for w in (FullyShardedDataParallel, TorchFSDP)]
            for model in models:
                model.name = f"_{strategy.name}"
            found[strategy.name] = [cost(model) for model in models]
        return found

    k, element = 4, 8
    sizes = [sum(p.numel() for n, p in uneven().named_parameters() if n.startswith(f"blocks.{i}.")) for i in range(3)]
    sizes = [sum(p.numel() for p in uneven().parameters()) - sum(sizes), *sizes]

    def padded(n):
        return [-(-size // n) * n * element for size in sizes]

    share = (world_size - 1) / world_size
    every, in_row = sum(padded(world_size)), padded(2)
    expected = {
        "FULL_SHARD": ({"all_gather": 2 * k - 1, "reduce_scatter": k}, share * (3 * every - padded(world_size)[0])),
        "SHARD_GRAD_OP": ({"all_gather": k, "reduce_scatter": k}, share * 2 * every),
        "NO_SHARD": ({"all_reduce": k}, share * 2 * sum(sizes) * element),
        "HYBRID_SHARD": (
            {"all_gather": 2 * k - 1, "reduce_scatter": k, "all_reduce": k},
            (3 * sum(in_row) - in_row[0]) / 2 + sum(in_row) / 2,  # in the row; then a half of it in the column
        ),
        "_HYBRID_SHARD_ZERO2": (
            {"all_gather": k, "reduce_scatter": k, "all_reduce": k},
            2 * sum(in_row) / 2 + sum(in_row) / 2,
        ),
    }
    for results in launch(ranks, world_size):
        for name, ((kinds, sent, ours), (_, sent_by_torch, theirs)) in results.items():
            assert (kinds, sent) == (expected[name][0], pytest.approx(expected[name][1])), name
            assert sent <= sent_by_torch, name
            n = 1 if name == "NO_SHARD" else 2 if "HYBRID" in name else world_size
            assert ours["between"]["parameters"] == sum(padded(n)) / n, name
            assert ours["backward"]["gradients"] == sum(padded(n)) / n, name
            assert ours["backward"]["unsharded"] == ours["between"]["buckets"] == 0, name
            assert ours["peak"] <= theirs["peak"], name


class Forked(nn.Module):
    """Of its two layers, an odd number of elements each, a forward uses the one that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x, use: int):
        return self.layers[use](x).square().sum()


def test_gradients_add_up_and_an_unused_parameters_is_zero():
    """Two backwards, both communicating, through the first of two layers: the mean over ranks, added up, and zeros."""

    def ranks():
        model = Forked()
        fully_shard(model, layout=FlatParameter)
        torch.use_deterministic_algorithms(True)  # fills what torch.empty returns with nan
        for _ in range(2):
            model(torch.full((1, 3), 1.0 + dist.get_rank()), 0).backward()
        [flat] = model.parameters()
        shards = [torch.empty_like(flat.grad) for _ in range(2)]
        dist.all_gather(shards, flat.grad)
        return torch.cat(shards)

    def alone():
        model = Forked()
        for _ in range(2):
            for rank in range(2):
                (model(torch.full((1, 3), 1.0 + rank), 0) / 2).backward()
        return torch.cat([p.grad.flatten() for p in model.layers[0].parameters()])

    expected = torch.cat([alone(), torch.zeros(12)])
    for found in launch(ranks, 2):
        torch.testing.assert_close(found, expected)
