"""fully_shard computes what one process and what torch's fully_shard compute, sends what the formula says, and keeps
no more memory than that."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from training import CLOSE, decoder, samples, train, train_alone, uneven

from shardlab import launch
from shardlab.launch import local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic, wire_bytes
from shardlab.parallel.fsdp import NaiveFSDP, fully_shard

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest
cloudpickle.register_pickle_by_value(sys.modules[train.__module__])

FULL_SHARD, SHARD_GRAD_OP = {"reshard_after_forward": True}, {"reshard_after_forward": False}
HYBRID = {"mesh": (2, 2)}  # replicate, shard
HYBRID_ZERO2 = HYBRID | SHARD_GRAD_OP
SIDES = (fully_shard, torch_fsdp.fully_shard)
DTYPES = (None, torch.bfloat16, torch.float16, torch.float32)


def shard(model: nn.Module, with_=fully_shard, *, mesh=None, units=lambda model: model.blocks, **options) -> nn.Module:
    """On a rank: a unit a block, and the rest."""
    if mesh is not None:
        names = ("replicate", "shard")[-len(mesh) :]
        options["mesh"] = init_device_mesh(local_device().type, mesh, mesh_dim_names=names)
    for unit in units(model):
        with_(unit, **options)
    return with_(model, **options)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole weights and gradients by name, on every rank."""
    state = {name: full(t).cpu() for name, t in model.state_dict().items()}
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    return state | {name: g if g is None else full(g).cpu() for name, g in gradients.items()}


def differing(a: dict, b: dict) -> list[str]:
    assert a.keys() == b.keys()
    return [n for n in a if (a[n] is None) != (b[n] is None) or (a[n] is not None and not torch.equal(a[n], b[n]))]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


# Equal to one process


def alone(world_size: int, **changes):
    model = uneven(**changes)
    return torch.tensor(train_alone(model, adamw(model), world_size), dtype=torch.float64), model.state_dict()


def strategies(world_size: int) -> dict:
    found = {"full shard": FULL_SHARD, "shard grad op": SHARD_GRAD_OP, "root kept": {}}
    return found | ({"hybrid": HYBRID, "hybrid zero2": HYBRID_ZERO2} if world_size == 4 else {})


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_equals_one_process(world_size):
    """20 steps of AdamW on the same global batches, by every strategy: losses and weights."""

    def ranks():
        results = {}
        for name, options in strategies(world_size).items():
            model = shard(uneven(), **options)
            results[name] = torch.tensor(train(model, adamw(model)), dtype=torch.float64), full_state(model)
        return results

    [(losses, weights)] = launch(alone, 1, world_size)
    same = {"rtol": 0, "atol": 0} if world_size <= 2 else CLOSE
    for results in launch(ranks, world_size):
        for found_losses, found in results.values():
            torch.testing.assert_close(found_losses, losses, **same)
            torch.testing.assert_close({name: found[name] for name in weights}, weights, **same)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_naive_training_equals_one_process(world_size):
    def ranks():
        model = NaiveFSDP(uneven())
        return torch.tensor(train(model, adamw(model)), dtype=torch.float64)

    [(losses, _)] = launch(alone, 1, world_size)
    for found in launch(ranks, world_size):
        torch.testing.assert_close(found, losses, **({"rtol": 0, "atol": 0} if world_size <= 2 else CLOSE))


# Equal to torch, to the bit


def compare(make, run, *, steps=3, **options) -> list[tuple[int, str]]:
    """On a rank: train ours and torch's side by side; (step, name) of all that differs, the loss included."""
    ours, theirs = shard(make(), **options), shard(make(), torch_fsdp.fully_shard, **options)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, theirs)]
    found = []
    for step in range(steps):
        losses = [run(model, step).detach() for model in (ours, theirs)]
        found += [(step, "loss")] * (not torch.equal(*losses))
        found += [(step, name) for name in differing(full_state(ours), full_state(theirs))]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found


def backward(model: nn.Module, step: int) -> torch.Tensor:
    loss = model(*samples(step, dist.get_rank(), dist.get_world_size()))
    loss.backward()
    return loss


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_equals_torch(world_size):
    """Losses, gradients and weights, float32 and float64, by every strategy."""

    def ranks():
        cases = {(make.__name__, n): (make, o) for make in (decoder, uneven) for n, o in strategies(world_size).items()}
        return {case: found for case, (make, o) in cases.items() if (found := compare(make, backward, **o))}

    assert launch(ranks, world_size) == [{}] * world_size


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(2, {}), pytest.param(3, {}, marks=pytest.mark.slow), pytest.param(4, HYBRID, marks=pytest.mark.slow)],
    ids=["2", "3", "hybrid"],
)
def test_mixed_precision_equals_torch(world_size, options):
    """Every pair of param_dtype and reduce_dtype; float16 would overflow without its two divisions."""

    def ranks():
        policies = [MixedPrecisionPolicy(param_dtype=p, reduce_dtype=r) for p in DTYPES for r in DTYPES]
        make = partial(decoder, n_layers=1)
        runs = {str(policy): compare(make, backward, steps=2, mp_policy=policy, **options) for policy in policies}
        return {policy: found for policy, found in runs.items() if found}

    assert launch(ranks, world_size) == [{}] * world_size


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


@pytest.mark.parametrize("make", [uneven, partial(decoder, vocab_size=256, dim=48, hidden_dim=96)])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_sent(world_size, make):
    """To the byte, formula = ours = torch's. N S is a unit's padded size, Psi the model's."""

    def ranks():
        names = strategies(world_size)
        return {name: [sent(shard(make(), with_, **names[name])) for with_ in SIDES] for name in names}

    units = unit_shards(make(), world_size)
    n, share, k = world_size, (world_size - 1) / world_size, len(units)
    root = n * units[0] * share
    every = n * sum(units) * share  # one all_gather, or one reduce_scatter, of all units
    row = sum(unit_shards(make(), 2))  # hybrid: all_gather and reduce_scatter among 2: (2-1)/2 of 2 shards; and
    column = sum(unit_shards(make(), 2))  # all_reduce of a shard among 2: 2 (2-1)/2 of 1 shard
    expected = {
        "full shard": ({"all_gather": 2 * k, "reduce_scatter": k}, 3 * every),
        "root kept": ({"all_gather": 2 * k - 1, "reduce_scatter": k}, 3 * every - root),
        "shard grad op": ({"all_gather": k, "reduce_scatter": k}, 2 * every),
        "hybrid": ({"all_gather": 2 * k - 1, "reduce_scatter": k, "all_reduce": k}, 0),
        "hybrid zero2": ({"all_gather": k, "reduce_scatter": k, "all_reduce": k}, 2 * row + column),
    }
    expected["hybrid"] = (expected["hybrid"][0], 3 * row - unit_shards(make(), 2)[0] + column)
    for results in launch(ranks, world_size):
        for name, (ours, theirs) in results.items():
            assert ours == theirs, name
            assert ours == (expected[name][0], pytest.approx(expected[name][1])), name
    if make is not uneven and world_size != 3:
        psi = sum(p.nbytes for p in make().parameters())
        assert expected["full shard"][1] == 3 * psi * share


def test_one_rank_sends_nothing():
    def ranks():
        return sent(shard(uneven())), sent(NaiveFSDP(uneven()))[0]

    [(ours, naive)] = launch(ranks, 1)
    assert ours == ({}, 0)


def test_naive_sends_as_much_in_more_messages():
    """Of each parameter two all_gathers and one reduce_scatter; flat shards, so padding of less than N elements."""

    def ranks():
        return sent(NaiveFSDP(uneven()))

    sizes = [-(-p.numel() // 3) * 8 for p in uneven().parameters()]
    for kinds, n_bytes in launch(ranks, 3):
        assert kinds == {"all_gather": 2 * len(sizes), "reduce_scatter": len(sizes)}
        assert n_bytes == pytest.approx(3 * 2 * sum(sizes))


# Memory


class Chain(nn.Module):
    """Blocks of B = 256 KiB each, and activations of 2 KiB that hardly count."""

    def __init__(self, n_blocks: int = 6, dim: int = 256) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(n_blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def memory(model: nn.Module, run, optimizer=None) -> dict:
    """Of a settled step: the peak, and what is resident after forward, after backward and between steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    found = {}
    for _ in range(2):
        with MemoryTracker(model, optimizer) as tracker:
            loss = run(model)
            found["forward"] = tracker.resident
            loss.backward()
            del loss
            found["backward"] = tracker.resident
            optimizer.step()
            optimizer.zero_grad()
            found["between"] = tracker.resident
        found["peak"] = tracker.peak.peak_bytes
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_peak_memory(world_size):
    """Equal to a closed form within 2%, and at most torch's."""

    def ranks():
        def run(model):
            return model(torch.ones(2, 256, requires_grad=True))

        found = {}
        for name in ("full shard", "shard grad op"):
            models = [shard(Chain(), with_, **strategies(world_size)[name]) for with_ in SIDES]
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


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_resident_memory(world_size):
    """To the byte: 1/N of parameters without padding, of gradients with; whole parameters where the strategy says."""

    def ranks():
        def run(model):
            return model(*samples(0, dist.get_rank(), world_size))

        found = {name: memory(shard(uneven(), **options), run) for name, options in strategies(world_size).items()}
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
