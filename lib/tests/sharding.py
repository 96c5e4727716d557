"""A model cut into sharded units, by ours and by torch's, and its state, memory and steps."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from training import CLOSE, samples, train_alone, uneven

from shardlab import launch
from shardlab.fsdp import fully_shard
from shardlab.launch import local_device
from shardlab.measure.memory import MemoryTracker

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


def local_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """This rank's shards of weights and gradients by name: nothing is sent, so this is quick."""

    def mine(tensor):
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    state = {name: mine(t).cpu() for name, t in model.state_dict().items()}
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters()}
    return state | {name: g if g is None else mine(g).cpu() for name, g in gradients.items()}


def differing(a: dict, b: dict) -> list[str]:
    assert a.keys() == b.keys()
    return [n for n in a if (a[n] is None) != (b[n] is None) or (a[n] is not None and not torch.equal(a[n], b[n]))]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


@cache
def one_process(world_size: int, steps: int, n_blocks: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses and weights of AdamW on the global batches of so many ranks; computed once."""

    def alone():
        model = uneven(n_blocks=n_blocks)
        losses = train_alone(model, adamw(model), world_size, steps)
        return torch.tensor(losses, dtype=torch.float64), model.state_dict()

    return launch(alone, 1)[0]


def assert_as_one_process(by_rank: list[dict], world_size: int, *, steps: int, n_blocks: int) -> None:
    """Of each rank the losses and weights of every case, by name: to the bit where a sum has only one order."""
    expected = one_process(world_size, steps, n_blocks)
    same = {"rtol": 0, "atol": 0} if world_size <= 2 else CLOSE
    for rank, results in enumerate(by_rank):
        for name, (losses, weights) in results.items():
            found = losses, {key: weights[key] for key in expected[1]}
            where = f"{name}, rank {rank} of {world_size}"
            torch.testing.assert_close(found, expected, **same, msg=lambda m, where=where: f"{where}: {m}")


STRATEGIES = {"full shard": FULL_SHARD, "shard grad op": SHARD_GRAD_OP, "root kept": {}}
HYBRIDS = {"hybrid": HYBRID, "hybrid zero2": HYBRID_ZERO2}  # of four ranks
NIGHT = pytest.mark.night


def in_strategies(*night) -> pytest.MarkDecorator:
    """By day all ranks in a row, 2 or 3 of them, and a hybrid mesh of 4; `night`: more pairs of the two."""
    day = [(2, STRATEGIES), (3, STRATEGIES), (4, HYBRIDS)]
    cases = day + [pytest.param(*case, marks=NIGHT) for case in night]
    names = [("hybrid " if case is day[2] else "") + str(case[0]) for case in day + list(night)]
    return pytest.mark.parametrize(("world_size", "strategies"), cases, ids=names)


def compare(make, run, *, steps=2, **options) -> list[tuple[int, str]]:
    """On a rank: train ours and torch's side by side; (step, name) of all that differs, the loss included."""
    ours, theirs = shard(make(), **options), shard(make(), torch_fsdp.fully_shard, **options)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, theirs)]
    found = []
    for step in range(steps):
        losses = [run(model, step).detach() for model in (ours, theirs)]
        found += [(step, "loss")] * (not torch.equal(*losses))
        found += [(step, name) for name in differing(local_state(ours), local_state(theirs))]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found


def backward(model: nn.Module, step: int) -> torch.Tensor:
    loss = model(*samples(step, dist.get_rank(), dist.get_world_size()))
    loss.backward()
    return loss


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


def states(model: nn.Module) -> list[list[str]]:
    """Of each block, when its forward and when its backward runs: what state the others are in, S, G or U."""
    seen: dict[str, list[str]] = {}

    def look(key):
        seen[key] = "".join(b._fsdp_unit.state.name[0] for b in model.blocks)

    for i, block in enumerate(model.blocks):
        block.norm.register_forward_hook(lambda m, a, out, i=i: look(f"forward {i}"))
        block.up.register_forward_hook(
            lambda m, a, out, i=i: out.register_hook(lambda g: look(f"backward {i}")) and None
        )
    backward(model, 0)
    return seen
