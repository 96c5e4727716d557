"""State by name: the same keys and bytes as torch's own, whole on rank 0 or in parts, whatever strategy holds it."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from strategies import at, ddp, single, torch_ddp, torch_fsdp, torch_hybrid
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from training import decoder, train, uneven

from shardlab import LaunchError, launch
from shardlab.ddp import DDP
from shardlab.fsdp import FlatParameter, fully_shard
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.state import sharded_state_dict
from shardlab.state.flat_interval_chunks import Part, held, rectangles
from shardlab.state.full_state import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from shardlab.zero import ZeroRedundancyOptimizer


def same_bits(a: dict, b: dict) -> bool:
    """Same keys, shapes, dtypes and bytes."""

    def same(x, y):
        if not torch.is_tensor(x):
            return x == y
        return x.dtype == y.dtype and x.shape == y.shape and x.numpy().tobytes() == y.numpy().tobytes()

    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


def two_blocks(seed: int = 0) -> nn.Module:
    return uneven(seed, n_blocks=2)


def flat(states: dict) -> dict:
    return {f"{name}.{key}": states[name][key] for name in sorted(states) for key in sorted(states[name])}


# Intervals as rectangles


@pytest.mark.parametrize("size", [(), (7,), (1, 5), (3, 4), (2, 3, 4), (2, 1, 3, 2)])
def test_an_interval_is_at_most_2n_minus_1_rectangles(size):
    """Every interval of every size: the rectangles hold its elements in order, and no other."""
    n = math.prod(size)
    whole = torch.arange(n).view(size)
    for start in range(n + 1):
        for end in range(start, n + 1):
            found = list(rectangles(size, start, end))
            assert len(found) <= max(1, 2 * len(size) - 1)
            part = Part.interval(torch.Size(size), start, torch.arange(start, end))
            assert [tuple(o) for o in part.pieces] == [offsets for offsets, _ in found]
            assert sum(piece.numel() for _, piece in held(part)) == end - start
            assert all(torch.equal(whole[where], piece) for where, piece in held(part))


def test_a_part_has_no_operations():
    with pytest.raises(NotImplementedError, match="a part of a tensor, for checkpoints only"):
        Part.interval(torch.Size([3]), 1, torch.ones(2)) + 1


# The model's


class Odd(nn.Module):
    """Buffers, a number of steps, weights that two share, and values that only bits tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 3)])
        self.norm = nn.BatchNorm1d(3)
        self.again = self.blocks[1]
        with torch.no_grad():
            self.blocks[0].weight[0] = torch.tensor([-0.0, float("nan"), float("-inf")])

    def forward(self, x):
        return self.norm(self.blocks[1](self.blocks[0](x)))


def make_odd(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Odd()


def holds_odd(world_size: int) -> tuple:
    return tuple(strategy for strategy in at(world_size) if "offload" not in strategy.__name__)


@pytest.mark.parametrize(
    ("make", "world_size", "strategies"),
    [
        (two_blocks, 3, at(3)),
        (make_odd, 2, holds_odd(2)),
        (make_odd, 4, (torch_hybrid,)),
        pytest.param(uneven, 1, at(1), marks=pytest.mark.night),
        pytest.param(decoder, 2, at(2), marks=pytest.mark.night),
        pytest.param(make_odd, 4, holds_odd(4), marks=pytest.mark.night),
    ],
)
def test_the_full_state_is_the_bare_models(make, world_size, strategies):
    """On rank 0, to the bit; nothing on the others. Back again into any strategy, from other weights."""

    def ranks():
        expected, found = make().state_dict(), {}
        for strategy in strategies:
            model, _ = strategy(make())
            full = full_state_dict(model)
            other, _ = strategy(make(seed=1))
            load_full_state_dict(other, full)
            again = full_state_dict(other)
            if dist.get_rank() == 0:
                found[strategy.__name__] = same_bits(full, expected) and same_bits(again, expected)
            else:
                found[strategy.__name__] = full == again == {}
        return found

    for found in launch(ranks, world_size):
        assert len(found) == len(strategies)
        assert all(found.values()), found


def test_full_state_costs_what_it_says():
    """One reduce a sharded tensor, of its bytes, and none for plain ones; one whole tensor at a time on other ranks."""

    def cost(strategy):
        model, _ = strategy(decoder())
        with record_traffic() as traffic, MemoryTracker(model) as tracker:
            full_state_dict(model)
        extra = tracker.peak.peak_bytes - sum(p.nbytes for p in model.parameters() if not hasattr(p, "placements"))
        reduces = [c.input_bytes for c in traffic.collectives if c.kind == "reduce"]
        return reduces, extra

    sizes = [p.nbytes for p in decoder().parameters()]
    for reduces, _ in launch(cost, 2, torch_ddp):
        assert reduces == []
    for rank, (reduces, extra) in enumerate(launch(cost, 2, torch_fsdp)):
        assert reduces == sizes
        if rank:
            shards = sum(sizes) / 2
            assert max(sizes) <= extra - shards <= max(sizes) + 10_000  # and the description of it all, in bytes


# The optimizer's


def test_the_full_optimizer_state_is_torchs():
    """By name, as get_optimizer_state_dict gives it; under ZeRO to the bit what DDP with two ranks has."""

    def ranks():
        found = {}
        for strategy in at(dist.get_world_size()):
            model, optimizer = strategy(two_blocks())
            train(model, optimizer, 2)
            full = full_optimizer_state_dict(model, optimizer)
            torchs = None
            if strategy in (single, torch_ddp, torch_fsdp):
                options = StateDictOptions(full_state_dict=True, cpu_offload=True)
                torchs = get_optimizer_state_dict(model, optimizer, options=options)
            found[strategy.__name__] = copy.deepcopy((full, torchs))
        return found

    [alone] = launch(ranks, 1)
    rank_0, rank_1 = launch(ranks, 2)
    reference = rank_0["ddp"][0]
    assert reference["state"].keys() == dict(two_blocks().named_parameters()).keys()
    for full, torchs in [*alone.values(), *rank_0.values()]:
        if torchs:
            assert full["param_groups"] == torchs["param_groups"]
            assert same_bits(flat(full["state"]), flat(torchs["state"]))
    for full, _ in rank_0.values():
        assert same_bits(flat(full["state"]), flat(reference["state"]))
        assert set(full["param_groups"][0]["params"]) == set(reference["param_groups"][0]["params"])
    assert all(full == {} for full, _ in rank_1.values())


def test_the_full_optimizer_state_goes_back_into_any_strategy():
    """Rank 0 has both states of a training; on two ranks every strategy goes on with it to the same bits."""

    def ranks():
        model, optimizer = ddp(two_blocks())
        train(model, optimizer, 2)
        weights, states = full_state_dict(model), full_optimizer_state_dict(model, optimizer)
        weights, states = copy.deepcopy(weights), copy.deepcopy(states)  # the optimizer goes on in them
        expected = train(model, optimizer, 2, first=2)
        losses = {}
        for strategy in at(dist.get_world_size()):
            model, optimizer = strategy(two_blocks(seed=1))
            optimizer.param_groups[0]["lr"] = 1.0
            load_full_state_dict(model, weights)
            load_full_optimizer_state_dict(model, optimizer, states)
            losses[strategy.__name__] = train(model, optimizer, 2, first=2) == expected
        return losses

    for losses in launch(ranks, 2):
        assert all(losses.values()), losses


class SlowsDown(torch.optim.Optimizer):
    """Counts its steps in an int, and divides its rate by it."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                p.sub_(p.grad, alpha=group["lr"] / self.state[p]["step"])


def test_optimizers_that_keep_other_states():
    """Adafactor's rows and columns, of whole parameters; a rate that is a tensor; no momentum yet; a plain number."""

    def ranks():
        found = []
        for optimizer_class, options in (
            (torch.optim.Adafactor, {"lr": 1e-2}),
            (torch.optim.AdamW, {"lr": torch.tensor(1e-2)}),
            (torch.optim.SGD, {"lr": 1e-2}),
            (SlowsDown, {"lr": 1e-2}),
        ):
            runs = []
            for resume in (False, True):
                model = two_blocks()
                optimizer = ZeroRedundancyOptimizer(
                    model.parameters(), optimizer_class, elementwise=False, **copy.deepcopy(options)
                )
                train(model, optimizer, 2)
                if resume:
                    weights, states = full_state_dict(model), full_optimizer_state_dict(model, optimizer)
                    model = two_blocks(seed=1)
                    optimizer = ZeroRedundancyOptimizer(
                        model.parameters(), optimizer_class, elementwise=False, **copy.deepcopy(options)
                    )
                    load_full_state_dict(model, weights)
                    load_full_optimizer_state_dict(model, optimizer, states)
                runs.append(train(model, optimizer, 2, first=2))
            found.append(runs[0] == runs[1])
        return found

    assert launch(ranks, 2) == [[True] * 4] * 2


# What can go wrong


def test_a_call_on_rank_0_alone_is_told_who_is_missing():
    """Instead of a hang; and a call on all ranks works afterwards."""

    def ranks():
        model, optimizer = torch_fsdp(uneven())
        said = []
        if dist.get_rank() == 0:
            for call in (
                lambda: full_state_dict(model, timeout_s=0.1),
                lambda: full_optimizer_state_dict(model, optimizer, timeout_s=0.1),
                lambda: load_full_state_dict(model, {}, timeout_s=0.1),
            ):
                try:
                    call()
                except RuntimeError as error:
                    said.append(str(error))
        dist.barrier()
        return said, len(full_state_dict(model))

    (said, n), *others = launch(ranks, 3)
    names = ["full_state_dict", "full_optimizer_state_dict", "load_full_state_dict"]
    missing = "ranks 1, 2 did not within 0.1 s: call it on every rank, outside of `if rank == 0`"
    assert said == [f"rank 0 called {name}, {missing}" for name in names]
    assert n == len(uneven().state_dict())
    assert others == [([], 0)] * 2


def test_earlier_calls_do_not_stand_for_later_ones():
    """Neither one that failed, of another rank, nor one that all ranks made."""

    def ranks():
        model, _ = torch_fsdp(uneven())
        said = []
        for caller in (0, 1, None, 1):
            if caller in (dist.get_rank(), None):
                try:
                    full_state_dict(model, timeout_s=0.1 if caller is not None else 30)
                except RuntimeError as error:
                    said.append(str(error).split(" did not")[0])
            dist.barrier()
        return said

    second = "rank 1 called full_state_dict, ranks 0, 2"
    assert launch(ranks, 3) == [["rank 0 called full_state_dict, ranks 1, 2"], [second, second], []]


def test_an_optimizer_made_before_sharding_is_found():
    def ranks():
        model = uneven()
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        torch_fsdp(model)
        sharded_state_dict(model, optimizer)

    with pytest.raises(LaunchError, match="that is not the model's: make the optimizer after sharding"):
        launch(ranks, 2)


def test_a_state_of_another_model_is_refused_on_every_rank():
    def ranks():
        model, optimizer = torch_fsdp(uneven())
        state = {"blocks.0.up.weight": torch.ones(2, 2)} if dist.get_rank() == 0 else {}
        said = []
        for call in (
            lambda: load_full_state_dict(model, state),
            lambda: load_full_optimizer_state_dict(model, optimizer, {"state": {"other": {}}, "param_groups": []}),
        ):
            try:
                call()
            except ValueError as error:
                said.append(str(error))
        return said

    for model, optimizer in launch(ranks, 2):
        assert "the model has blocks.0.down.bias, the state does not" in model
        assert "and 18 more" in model
        assert "names that the model does not know: other" in optimizer


def test_a_state_that_cannot_be_cut_is_named():
    """Adafactor's row statistics are of another shape than the shards."""

    def ranks():
        model = uneven()
        optimizer = torch.optim.Adafactor(model.parameters())
        train(model, optimizer, 1)
        states = full_optimizer_state_dict(model, optimizer)
        model, _ = torch_fsdp(uneven())
        load_full_optimizer_state_dict(model, torch.optim.Adafactor(model.parameters()), states)

    with pytest.raises(LaunchError, match="row_var of embedding.weight, of shape .*, can't be cut up as the parameter"):
        launch(ranks, 2)


def test_a_full_state_is_a_copy():
    """Training goes on, and what was taken before stays as it was: also of a model that is not sharded."""

    def ranks():
        model, optimizer = single(uneven())
        before = {name: t.clone() for name, t in model.state_dict().items()}
        taken = full_state_dict(model)
        train(model, optimizer, 1)
        return [name for name in taken if not torch.equal(taken[name], before[name])]

    assert launch(ranks, 1) == [[]]


# Names: a wrapper is known by its class, not by its shape


class Wraps(nn.Module):
    """A user's own module, which looks like a wrapper."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args):
        return self.module(*args)


def names_under(wrap) -> list[str]:
    return list(full_state_dict(wrap(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))))


def averaged() -> tuple[int, bool]:
    """The count of an AveragedModel after a checkpoint, and whether the next update weighs the average by it."""
    model = nn.Linear(2, 2)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        average.update_parameters(model)
    fresh = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    load_full_state_dict(fresh, full_state_dict(average))
    before = fresh.module.weight.detach().clone()
    with torch.no_grad():
        model.weight += 4
    fresh.update_parameters(model)
    return int(fresh.n_averaged), bool(torch.allclose(fresh.module.weight, before + 1))


def test_names_are_the_bare_models():
    def compiled(m):
        return torch.compile(m, backend="eager")

    def inner_compiled(m):
        m[1] = compiled(m[1])
        return m

    def flat_compiled(m):
        m[1] = compiled(m[1])
        return fully_shard(m, layout=FlatParameter)

    def torchs_fsdp(m):
        return FullyShardedDataParallel(m, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD)

    def ranks():
        bare = ["0.weight", "0.bias", "1.weight", "1.bias"]
        wraps = (lambda m: m, DDP, compiled, inner_compiled, lambda m: compiled(DDP(m)), flat_compiled, torchs_fsdp)
        assert [names_under(wrap) for wrap in wraps] == [bare] * len(wraps)
        assert names_under(Wraps) == names_under(lambda m: DDP(Wraps(m))) == [f"module.{name}" for name in bare]
        return averaged()

    assert launch(ranks, 1, device="cpu") == [(4, True)]


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor_is_refused_before_it_is_saved():
    with pytest.raises(ValueError, match="_extra_state is no tensor"):
        full_state_dict(Extra(2, 2))


def test_a_parameter_may_be_called_almost_like_a_flat_one():
    model = nn.Module()
    model.my_flat_param = nn.Parameter(torch.ones(2))
    assert list(full_state_dict(model)) == ["my_flat_param"]


def loaded_in_inference_mode() -> list[bool]:
    """States that an optimizer gets by a load are as good as those that it makes itself."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = full_optimizer_state_dict(model, optimizer)
    fresh = torch.optim.AdamW(model.parameters())
    with torch.inference_mode():
        load_full_optimizer_state_dict(model, fresh, state)
    fresh.step()
    return [t.is_inference() for s in fresh.state.values() for t in s.values()]


def test_states_may_be_loaded_in_inference_mode():
    assert not any(loaded_in_inference_mode())
