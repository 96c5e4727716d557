"""The flat layout: equal to one process and to torch's FSDP1."""

from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from sharding import DTYPES, NIGHT, STRATEGIES, adamw, assert_as_one_process, memory, shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from training import CLOSE, Mixer, decoder, samples, train, uneven

from shardlab import launch
from shardlab.fsdp import FlatParameter, fully_shard
from shardlab.grad_norm import clip_grad_norm_
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.model import Block
from shardlab.state.sharded_state import flat_intervals

BLOCKS = ModuleWrapPolicy({Mixer, Block})
IN_A_ROW = [s for s in ShardingStrategy if "HYBRID" not in s.name]
ON_A_MESH = [s for s in ShardingStrategy if "HYBRID" in s.name]  # of four ranks
ALL = IN_A_ROW + ON_A_MESH


def ours(model: nn.Module, strategy=ShardingStrategy.FULL_SHARD, policy=None, **options) -> nn.Module:
    """fully_shard with the flat layout, by the name of FSDP1's strategy. NO_SHARD: all ranks are replicas."""
    if strategy is ShardingStrategy.NO_SHARD:
        options["mesh"] = (dist.get_world_size(), 1)
    elif "HYBRID" in strategy.name:
        options["mesh"] = (2, 2)
    if strategy.name in ("SHARD_GRAD_OP", "NO_SHARD", "_HYBRID_SHARD_ZERO2"):
        options["reshard_after_forward"] = False
    if policy:  # FSDP1 casts the inputs of the root alone
        fields = {"param_dtype": policy.param_dtype, "reduce_dtype": policy.reduce_dtype}
        inner = options | {"mp_policy": MixedPrecisionPolicy(**fields, cast_forward_inputs=False)}
        for block in model.blocks:
            shard(block, layout=FlatParameter, units=lambda _: [], **inner)
        root = options | {"mp_policy": MixedPrecisionPolicy(**fields)}
        return shard(model, layout=FlatParameter, units=lambda _: [], **root)
    return shard(model, layout=FlatParameter, **options)


def torchs(model: nn.Module, strategy=ShardingStrategy.FULL_SHARD, policy=None, **options) -> nn.Module:
    if "HYBRID" in strategy.name:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    options |= {"device_id": torch.device("cpu"), "mixed_precision": policy}
    return TorchFSDP(model, sharding_strategy=strategy, auto_wrap_policy=BLOCKS, **options)


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
    """On a rank: losses and weights of AdamW, by every strategy; on a row of ranks also offloaded."""
    models = {s.name: partial(ours, strategy=s) for s in strategies}
    if IN_A_ROW[0] in strategies:
        models |= {name: partial(shard, layout=FlatParameter, **options) for name, options in STRATEGIES.items()}
        models["offloaded"] = partial(ours, offload_policy=CPUOffloadPolicy())
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
    models = [with_(make(), **options) for with_ in (ours, torchs)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    found = []
    for step in range(steps):
        losses = [run(model, step) for model in models]
        found += [f"loss {step}"] * (not same(*losses))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    mine, theirs = full_state(models[0]), torch_state(models[1])
    assert mine.keys() == theirs.keys()
    return found + [name for name in mine if not same(mine[name], theirs[name])]


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
    """To the bit for powers of two: else torch's FSDP1 rounds in its own place, where it divides twice."""

    def ranks():
        found = {}
        for make, strategy in product((one_layer, uneven), strategies):
            found[f"{make.__name__} {strategy.name}"] = compare(make, backward, strategy=strategy)
        return {case: differing for case, differing in found.items() if differing}

    assert launch(ranks, world_size) == [{}] * world_size


def test_parameters_lie_in_torchs_order():
    """A module's own before its children's. Else the ranks' sums, each in the order of its shard, differ in a bit."""

    def ranks():
        blocks = zip(ours(uneven()).blocks, torchs(uneven()).module.blocks, strict=True)
        cut = len("blocks.0.")
        return [([p.name for p in b._fsdp_unit.layouts[0].params], list(t._flat_param._fqns)) for b, t in blocks], cut

    found, _ = launch(ranks, 1)[0]
    for mine, theirs in found:
        assert mine == theirs == ["gain", *(f"{m}.{n}" for m in ("norm", "up", "down") for n in ("weight", "bias"))]


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
        runs = {str(p): compare(one_layer, backward, policy=p, strategy=strategy) for p in policies}
        return {policy: found for policy, found in runs.items() if found}

    assert launch(ranks, world_size) == [{}] * world_size


# Training loops


def micro_batches(model, step):
    """Two micro-batches that send nothing, and one that reduces the sum."""
    if isinstance(model, TorchFSDP):
        with model.no_sync():
            for i in range(2):
                backward(model, 3 * step + i)
        return backward(model, 3 * step + 2)
    for i in range(3):
        model.set_requires_gradient_sync(i == 2)
        loss = backward(model, 3 * step + i)
    return loss


def clipped(model, step, norm_type=2.0):
    loss = backward(model, step)
    if isinstance(model, TorchFSDP):
        return loss + model.clip_grad_norm_(0.1, norm_type)
    return loss + clip_grad_norm_(model.parameters(), 0.1, norm_type)


def test_loops_train_as_under_torch():
    """Micro-batches and clipping. Norms are sums of squares in another order than torch's."""
    cases = {
        "micro-batches": (micro_batches, {}),
        "micro-batches, shard grad op": (micro_batches, {"strategy": ShardingStrategy.SHARD_GRAD_OP}),
        "micro-batches, no shard": (micro_batches, {"strategy": ShardingStrategy.NO_SHARD}),
        "clipped": (clipped, {"same": nearly}),
        "clipped by the largest": (partial(clipped, norm_type=float("inf")), {"same": nearly}),
    }

    def ranks():
        found = {}
        for name, (run, options) in cases.items():
            make = one_layer if "clipped" in name else partial(uneven, n_blocks=2)  # torch's norm is always in float32
            found[name] = compare(make, run, **options)
        return {name: differing for name, differing in found.items() if differing}

    assert launch(ranks, 2) == [{}] * 2


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
            models = [with_(uneven(), strategy) for with_ in (ours, torchs)]
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
        for name, ((kinds, sent, mine), (_, sent_by_torch, theirs)) in results.items():
            assert (kinds, sent) == (expected[name][0], pytest.approx(expected[name][1])), name
            assert sent <= sent_by_torch, name
            n = 1 if name == "NO_SHARD" else 2 if "HYBRID" in name else world_size
            assert mine["between"]["parameters"] == sum(padded(n)) / n, name
            assert mine["backward"]["gradients"] == sum(padded(n)) / n, name
            assert mine["backward"]["unsharded"] == mine["between"]["buckets"] == 0, name
            assert mine["peak"] <= theirs["peak"], name


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
