"""The flat layout, and FullyShardedDataParallel: equal to one process and to torch's FSDP1."""

from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from sharding import (
    DTYPES,
    HYBRIDS,
    NIGHT,
    STRATEGIES,
    adamw,
    assert_as_one_process,
    differing,
    memory,
    shard,
    states,
)
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
from shardlab.fsdp import FlatParameter, FSDPModule, FullyShardedDataParallel, flat_intervals, fully_shard
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.model import Block

BLOCKS = ModuleWrapPolicy({Mixer, Block})
IN_A_ROW = [s for s in ShardingStrategy if "HYBRID" not in s.name]
ON_A_MESH = [s for s in ShardingStrategy if "HYBRID" in s.name]  # of four ranks
ALL = IN_A_ROW + ON_A_MESH


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


def trained(strategies: list, *, steps: int, n_blocks: int) -> dict:
    """On a rank: losses and weights of AdamW, under fully_shard and the wrapper, by every strategy."""
    in_a_row, on_a_mesh = IN_A_ROW[0] in strategies, ON_A_MESH[0] in strategies
    in_units = (STRATEGIES if in_a_row else {}) | (HYBRIDS if on_a_mesh else {})
    models = {name: partial(shard, layout=FlatParameter, **options) for name, options in in_units.items()}
    if in_a_row:
        models["offloaded"] = partial(wrap, cpu_offload=CPUOffload(offload_params=True))
    for s in strategies:
        models[s.name] = partial(wrap, strategy=s)
        models[f"{s.name}, original"] = partial(wrap, strategy=s, use_orig_params=True)
    results = {}
    for name, make in models.items():
        model = make(uneven(n_blocks=n_blocks))
        results[name] = torch.tensor(train(model, adamw(model), steps), dtype=torch.float64), full_state(model)
    return results


def assert_trained(world_size: int, strategies: list, **sizes: int) -> None:
    assert_as_one_process(launch(partial(trained, strategies, **sizes), world_size), world_size, **sizes)


@pytest.mark.parametrize(
    ("world_size", "strategies"), [(2, IN_A_ROW), (3, IN_A_ROW), (4, ON_A_MESH)], ids=["2", "3", "hybrid 4"]
)
def test_training_equals_one_process(world_size, strategies):
    """The same global batches: losses and weights."""
    assert_trained(world_size, strategies, steps=4, n_blocks=2)


@pytest.mark.night
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_equals_one_process_for_20_steps(world_size):
    every = ALL if world_size == 4 else IN_A_ROW
    assert_trained(world_size, every, steps=20, n_blocks=3)


# Equal to torch


def compare(make, run, *, steps=2, same=torch.equal, **options) -> list[str]:
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


def one_layer() -> nn.Module:
    return decoder(n_layers=1)


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


@pytest.mark.parametrize(
    ("world_size", "strategies"),
    [(2, IN_A_ROW), pytest.param(1, IN_A_ROW, marks=NIGHT), pytest.param(4, ALL, marks=NIGHT)],
    ids=["2", "1", "4"],
)
def test_equals_torch(world_size, strategies):
    """To the bit for powers of two: else torch's FSDP1 rounds in its own place, where it divides twice.

    But with original parameters torch aligns each to 16 bytes, so that some of odd sizes lie in another rank's shard
    than ours do: sums of four in another order.
    """

    def ranks():
        found = {}
        for make, strategy, orig in product((one_layer, uneven), strategies, (False, True)):
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


PAIRS = [(p, r) for p in DTYPES for r in DTYPES]
SOME = [(torch.bfloat16, torch.float32), (torch.float16, None)]


@pytest.mark.parametrize(
    ("world_size", "strategy", "pairs"),
    [
        (2, ShardingStrategy.FULL_SHARD, [*SOME, (None, torch.bfloat16), (torch.float32, torch.float16)]),
        (2, ShardingStrategy.NO_SHARD, SOME),
        (4, ShardingStrategy.HYBRID_SHARD, SOME),
        pytest.param(2, ShardingStrategy.FULL_SHARD, PAIRS, marks=NIGHT),
        pytest.param(2, ShardingStrategy.NO_SHARD, PAIRS, marks=NIGHT),
        pytest.param(4, ShardingStrategy.HYBRID_SHARD, PAIRS, marks=NIGHT),
    ],
    ids=["some full shard", "some no shard", "some hybrid", "full shard", "no shard", "hybrid"],
)
def test_mixed_precision_equals_torch(world_size, strategy, pairs):
    def ranks():
        policies = [MixedPrecision(param_dtype=p, reduce_dtype=r) for p, r in pairs]
        runs = {str(p): compare(one_layer, backward, mixed_precision=p, strategy=strategy) for p in policies}
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
            make = one_layer if "clipped" in name else partial(uneven, n_blocks=2)  # torch's norm is always in float32
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


@pytest.mark.parametrize(
    ("world_size", "strategies"),
    [(2, IN_A_ROW), (3, IN_A_ROW), (4, ON_A_MESH[:1]), pytest.param(4, ALL, marks=NIGHT)],
    ids=["2", "3", "hybrid 4", "4"],
)
def test_bytes_sent_and_kept(world_size, strategies):
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
        for strategy in strategies:
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
