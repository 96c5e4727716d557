"""fully_shard computes what one process and what torch's fully_shard compute, sends what the formula says, and keeps
no more memory than that."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from sharding import (
    DTYPES,
    FULL_SHARD,
    HYBRID,
    HYBRIDS,
    NIGHT,
    SHARD_GRAD_OP,
    SIDES,
    STRATEGIES,
    Chain,
    adamw,
    assert_as_one_process,
    backward,
    compare,
    full_state,
    in_strategies,
    memory,
    shard,
)
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from training import decoder, samples, train, uneven

from shardlab import launch
from shardlab.measure.traffic import record_traffic, wire_bytes

# Equal to one process


def trained(strategies: dict, *, steps: int, n_blocks: int) -> dict:
    """On a rank: losses and weights of AdamW, by every strategy."""
    results = {}
    for name, options in strategies.items():
        model = shard(uneven(n_blocks=n_blocks), **options)
        results[name] = torch.tensor(train(model, adamw(model), steps), dtype=torch.float64), full_state(model)
    return results


def assert_trained(world_size: int, strategies: dict, **sizes: int) -> None:
    assert_as_one_process(launch(partial(trained, strategies, **sizes), world_size), world_size, **sizes)


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_equals_one_process(world_size):
    """The same global batches: losses and weights."""
    assert_trained(world_size, STRATEGIES, steps=4, n_blocks=2)


@pytest.mark.night
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_equals_one_process_for_20_steps(world_size):
    every = STRATEGIES | (HYBRIDS if world_size == 4 else {})
    assert_trained(world_size, every, steps=20, n_blocks=3)


# Equal to torch, to the bit


def differing_from_torch(cases: dict, steps: int = 2) -> dict:
    """On a rank: of each case (make, options) what differs."""
    runs = {case: compare(make, backward, steps=steps, **options) for case, (make, options) in cases.items()}
    return {case: found for case, found in runs.items() if found}


@in_strategies((1, STRATEGIES), (4, STRATEGIES))
def test_equals_torch(world_size, strategies):
    """Losses, gradients and weights, float32 and float64, by every strategy."""
    makes = (uneven,) if strategies is HYBRIDS else (decoder, uneven)
    cases = {(make.__name__, n): (make, o) for make in makes for n, o in strategies.items()}
    assert launch(differing_from_torch, world_size, cases) == [{}] * world_size


PAIRS = [(p, r) for p in DTYPES for r in DTYPES]


@pytest.mark.parametrize(
    ("world_size", "options", "pairs"),
    [
        (2, {}, PAIRS),
        (3, {}, [(torch.float16, None), (None, torch.float16)]),
        pytest.param(3, {}, PAIRS, marks=NIGHT),
        pytest.param(4, HYBRID, PAIRS, marks=NIGHT),
    ],
    ids=["2", "float16 on 3", "3", "hybrid"],
)
def test_mixed_precision_equals_torch(world_size, options, pairs):
    """Pairs of param_dtype and reduce_dtype; float16 would overflow without its two divisions.

    In one step: losses and gradients. What comes of them does not depend on the pair.
    """
    policies = [MixedPrecisionPolicy(param_dtype=p, reduce_dtype=r) for p, r in pairs]
    cases = {str(policy): (partial(decoder, n_layers=1), {"mp_policy": policy} | options) for policy in policies}
    assert launch(partial(differing_from_torch, cases, steps=1), world_size) == [{}] * world_size


# Messages


def unit_shards(model: nn.Module, n: int) -> list[int]:
    """Bytes of each unit's padded shard: of every parameter ceil(rows / n) rows."""
    units: dict[str, int] = {}
    for name, p in model.named_parameters():
        unit = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else ""
        units[unit] = units.get(unit, 0) + -(-p.shape[0] // n) * p[0].nbytes
    return list(units.values())


def sent(model: nn.Module) -> tuple[dict, float]:
    """In one step: kinds of collectives, and bytes on the wire; all groups here are of the same size."""
    backward(model, 0)
    with record_traffic() as traffic:
        backward(model, 1)
    n = 2 if "all_reduce" in traffic.kinds() else dist.get_world_size()
    return dict(traffic.kinds()), sum(wire_bytes(c, n) for c in traffic.collectives)


EVEN = partial(decoder, vocab_size=256, dim=48, hidden_dim=96)


@in_strategies((4, STRATEGIES))
def test_bytes_sent(world_size, strategies):
    """To the byte, formula = ours = torch's. N S is a unit's padded size, Psi the model's."""
    makes = {"uneven": uneven} | ({"even": EVEN} if strategies is STRATEGIES else {})

    def ranks():
        cases = [(which, name) for which in makes for name in strategies]
        return {(w, n): [sent(shard(makes[w](), side, **strategies[n])) for side in SIDES] for w, n in cases}

    def formulas(make):
        units = unit_shards(make(), world_size)
        n, share, k = world_size, (world_size - 1) / world_size, len(units)
        root = n * units[0] * share
        every = n * sum(units) * share  # one all_gather, or one reduce_scatter, of all units
        row = sum(unit_shards(make(), 2))  # hybrid: all_gather and reduce_scatter among 2: (2-1)/2 of 2 shards; and
        column = sum(unit_shards(make(), 2))  # all_reduce of a shard among 2: 2 (2-1)/2 of 1 shard
        root_of_2 = unit_shards(make(), 2)[0]
        return {
            "full shard": ({"all_gather": 2 * k, "reduce_scatter": k}, 3 * every),
            "root kept": ({"all_gather": 2 * k - 1, "reduce_scatter": k}, 3 * every - root),
            "shard grad op": ({"all_gather": k, "reduce_scatter": k}, 2 * every),
            "hybrid": ({"all_gather": 2 * k - 1, "reduce_scatter": k, "all_reduce": k}, 3 * row - root_of_2 + column),
            "hybrid zero2": ({"all_gather": k, "reduce_scatter": k, "all_reduce": k}, 2 * row + column),
        }

    expected = {which: formulas(make) for which, make in makes.items()}
    for results in launch(ranks, world_size):
        assert len(results) == len(makes) * len(strategies)
        for (which, name), (ours, theirs) in results.items():
            kinds, n_bytes = expected[which][name]
            assert ours == theirs, (which, name)
            assert ours == (kinds, pytest.approx(n_bytes)), (which, name)
    if "even" in makes and world_size != 3:
        psi = sum(p.nbytes for p in EVEN().parameters())
        assert expected["even"]["full shard"][1] == 3 * psi * (world_size - 1) / world_size


def test_one_rank_sends_nothing():
    def ranks():
        return sent(shard(uneven()))

    assert launch(ranks, 1) == [({}, 0)]


# Memory


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=NIGHT)])
def test_peak_memory(world_size):
    """Equal to a closed form within 2%, and at most torch's."""

    def ranks():
        def run(model):
            return model(torch.ones(2, 256, requires_grad=True))

        found = {}
        for name, options in (("full shard", FULL_SHARD), ("shard grad op", SHARD_GRAD_OP)):
            models = [shard(Chain(), with_, **options) for with_ in SIDES]
            found[name] = [memory(model, run)["peak"] for model in models]
        return found

    n, length, block = world_size, 6, 256 * 256 * 4
    full_shard = (  # while backward computes the second block
        length * block / n  # sharded parameters
        + (length - 3) * block / n  # sharded gradients of the blocks behind the next two
        + block + block / n  # the third block's gradients on their way: reduce_scatter_input and output
        + block  # its parameters, whole
        + block  # its gradients, whole
        + block  # the first block's parameters on their way: all_gather_output
    )  # fmt: skip
    shard_grad_op = (  # while backward computes the last block but one
        length * block / n  # sharded parameters
        + (length - 1) * block  # whole ones, but the last block's
        + block + block / n  # its gradients on their way
        + block  # whole gradients
    )  # fmt: skip
    for found in launch(ranks, world_size):
        for name, expected in (("full shard", full_shard), ("shard grad op", shard_grad_op)):
            ours, theirs = found[name]
            assert ours <= theirs
            assert ours == pytest.approx(expected, rel=0.02), name


@pytest.mark.parametrize(
    ("world_size", "strategies"),
    [(2, STRATEGIES), (3, STRATEGIES), pytest.param(4, STRATEGIES | HYBRIDS, marks=NIGHT)],
    ids=["2", "3", "4"],
)
def test_resident_memory(world_size, strategies):
    """To the byte: 1/N of parameters without padding, of gradients with; whole parameters where the strategy says."""

    def ranks():
        def run(model):
            return model(*samples(0, dist.get_rank(), world_size))

        found = {name: memory(shard(uneven(), **options), run) for name, options in strategies.items()}
        local = sum(p.to_local().nbytes for p in shard(uneven()).parameters())
        return found, local

    for rank, (found, local) in enumerate(launch(ranks, world_size)):
        for name, moments in found.items():
            n = 2 if "hybrid" in name else world_size
            units = unit_shards(uneven(), n)
            rows = [(p.shape[0], p[0].nbytes) for p in uneven().parameters()]
            start = rank % n
            mine = sum(max(0, min(-(-r // n), r - start * -(-r // n))) * nbytes for r, nbytes in rows)
            if n == world_size:
                assert mine == local
            whole = {"full shard": 0, "root kept": n * units[0], "hybrid": n * units[0]}.get(name, n * sum(units))
            for moment in moments.values():
                if isinstance(moment, dict):
                    assert moment["parameters"] == mine, name
            assert moments["forward"]["unsharded"] == whole, name
            assert moments["backward"]["gradients"] == sum(units), name
            for moment in ("backward", "between"):
                assert moments[moment]["unsharded"] == moments[moment]["buckets"] == 0, name
            assert moments["between"]["gradients"] == 0
