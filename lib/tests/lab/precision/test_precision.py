"""Weights of 16 bits train as float32 ones: exactly with masters, on average with stochastic rounding."""

import copy
import io
import re

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from training import train, train_alone, uneven

from shardlab import launch
from shardlab.measure.memory import MemoryTracker
from shardlab.precision import (
    MasterWeights,
    StochasticRounding,
    master_weights_and_stochastic_rounding,
    stochastic_round_,
)

OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.Adagrad, {"lr": 0.1}),
]


def test_the_notes_ranges_are_torchs():
    """Largest, smallest normal and eps, as the note's table gives them."""
    rows = re.findall(
        r"^ +(b?float\d+) {2,}(\S.*?) {2,}(\S+) {2,}(\S+)$",
        master_weights_and_stochastic_rounding.__doc__,
        re.MULTILINE,
    )
    assert [name for name, *_ in rows] == ["float32", "bfloat16", "float16"]
    for name, *figures in rows:
        info = torch.finfo(getattr(torch, name))
        assert [eval(figure) for figure in figures] == [info.max, info.smallest_normal, info.eps]
    assert torch.finfo(torch.float16).max == 65504
    half = torch.tensor([2.0**-24, 2.0**-25, 1.01 * 2.0**-25]).half()
    assert half.tolist() == [2.0**-24, 0, 2.0**-24]
    one = torch.tensor([1 - 2**-8, 1 - 2**-9, 1 + 2**-7, 1 + 2**-8], dtype=torch.float64).bfloat16()
    assert one.tolist() == [1 - 2**-8, 1, 1 + 2**-7, 1]


# Masters


class Mixed(nn.Module):
    """bfloat16 layers, and one that stays in float32."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(8, 16).bfloat16(), nn.LayerNorm(16), nn.Linear(16, 4).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x).float()).bfloat16())


def groups(model: nn.Module) -> list[dict]:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": decayed}, {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]


def backward(model: nn.Module, step: int) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).bfloat16()
    model(x).float().square().sum().backward()


def step_lr(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
def test_masters_are_what_float32_weights_become(optimizer_class, options):
    """To the bit, given the same gradients, with groups and a schedule; and each weight is its master, rounded."""
    model = Mixed()
    in_float32 = copy.deepcopy(model).float()
    ours = MasterWeights(groups(model), optimizer_class, **options)
    theirs = optimizer_class(groups(in_float32), **options)
    schedules = [step_lr(ours), step_lr(theirs)]
    for step in range(6):
        backward(model, step)
        for p, q in zip(model.parameters(), in_float32.parameters(), strict=True):
            q.grad = p.grad.float()
        gradients = [p.grad.clone() for p in model.parameters()]
        for stepped in (ours, theirs, *schedules):
            stepped.step()
        for p, q, gradient in zip(model.parameters(), in_float32.parameters(), gradients, strict=True):
            assert torch.equal(ours.state[p].get("master", p), q) and torch.equal(p, q.to(p.dtype))
            assert torch.equal(p.grad, gradient), "the gradient stays as it was"
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] < options["lr"]


@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
@pytest.mark.parametrize("wrapper", [MasterWeights, StochasticRounding])
def test_training_resumes_from_a_state_dict(wrapper, optimizer_class, options):
    """To the bit (with masters), through a file; all state in it is float32."""

    def train(model, optimizer, steps):
        for step in steps:
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()

    model, resumed = Mixed(), Mixed(seed=1)
    optimizer = wrapper(model.parameters(), optimizer_class, **options)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file)
    floating = [v for s in state["state"].values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert floating and all(v.dtype == torch.float32 for v in floating)
    again = wrapper(resumed.parameters(), optimizer_class, **options | {"lr": 9.0})
    again.load_state_dict(state)
    resumed.load_state_dict(weights)
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        assert all(torch.equal(v, again.state[q][k]) for k, v in optimizer.state[p].items() if k != "unused")
    if wrapper is MasterWeights:
        train(model, optimizer, range(3, 6))
        train(resumed, again, range(3, 6))
        assert all(map(torch.equal, model.parameters(), resumed.parameters()))


def test_a_weight_that_somebody_else_wrote_counts():
    """Where it was written; the rest keeps what its master has in the bits that the weight has not."""
    weight = nn.Parameter(torch.ones(4).bfloat16())
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=2.0**-10)

    def step():
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    step()
    assert weight.tolist() == [1.0] * 4
    with torch.no_grad():
        weight[0] = 3.0
    step()
    assert optimizer.state[weight]["master"].tolist() == [3 - 2**-10, *[1 - 2 * 2**-10] * 3]


def test_a_parameter_without_gradient_stays_and_a_closure_is_called():
    used, unused = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(2).bfloat16())
    optimizer = MasterWeights([("used", used), ("unused", unused)], torch.optim.AdamW, lr=0.5, weight_decay=0.1)

    def closure():
        optimizer.zero_grad()
        loss = used.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert unused.tolist() == [1, 1] and used.tolist() != [1, 1] and unused not in optimizer.state
    assert optimizer.param_groups[0]["param_names"] == ["used", "unused"]


def held(wrapper) -> tuple[dict, dict, int, int]:
    """Resident bytes by category before and after a step, the peak over the former, and the largest parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(20)]).bfloat16()
    optimizer = wrapper(model.parameters(), torch.optim.AdamW, lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    with MemoryTracker(model, optimizer) as tracker:
        before = dict(tracker.resident)
        optimizer.step()
        after = dict(tracker.resident)
    return before, after, tracker.peak.peak_bytes - sum(before.values()), 64 * 64


@pytest.mark.parametrize(("wrapper", "state_bytes"), [(MasterWeights, 12), (StochasticRounding, 8)])
def test_resident_bytes_are_the_formulas(wrapper, state_bytes):
    """16 bytes a parameter with masters, 12 without; a step adds a few copies of the largest parameter, not of all."""
    [(before, after, added, largest)] = launch(lambda: held(wrapper), 1, device="cpu")
    n = 20 * largest
    assert after["parameters"] == after["gradients"] == 2 * n
    assert after["optimizer_states"] == before["optimizer_states"] == state_bytes * n + 20 * 4  # Adam counts steps
    assert sum(after.values()) == (4 + state_bytes) * n + 20 * 4
    # float32 weight (a master is there already), float32 gradient, and two of AdamW's or of the rounding's own
    assert 4 * largest < added <= 16 * largest + 64


# Stochastic rounding

VALUES = [1.0, 1 + 2**-9, -1 - 2**-9, 1 + 2**-23, 0.3, -1e-30, 1e-39, -3e38, 2.0**-149, 0.0, -0.0]


def rounded_with(noise: torch.Tensor, value: float, monkeypatch) -> torch.Tensor:
    monkeypatch.setattr(torch, "randint", lambda *args, **options: noise.clone())
    return stochastic_round_(torch.empty(len(noise)).bfloat16(), torch.full((len(noise),), value))


@pytest.mark.parametrize("value", VALUES)
def test_rounding_takes_a_neighbour_and_is_unbiased(value, monkeypatch):
    """Over all 2**16 random numbers that can be drawn, the mean is the value itself, exactly."""
    exact = torch.tensor(value)
    found = rounded_with(torch.arange(1 << 16, dtype=torch.int32), value, monkeypatch)
    low = (exact.view(torch.int32) & (-1 << 16)).view(torch.float32)  # towards zero
    high = ((exact.view(torch.int32) & (-1 << 16)) + (1 << 16)).view(torch.float32)
    assert set(found.tolist()) == ({value} if low == exact else {low.item(), high.item()})
    assert found.double().sum().item() == (1 << 16) * exact.double().item()
    assert torch.equal(found.signbit(), exact.signbit().expand_as(found))


@pytest.mark.parametrize("value", VALUES)
def test_the_mean_of_many_draws_is_the_value(value):
    """Within 5 standard deviations of a mean of n draws between neighbours that lie a gap apart: gap / 2 sqrt(n)."""
    n, exact = 100_000, torch.tensor(value).double()
    value = torch.full((n,), value)
    found = stochastic_round_(torch.empty(n).bfloat16(), value, torch.Generator().manual_seed(0)).double()
    gap = found.max() - found.min()
    assert abs(found.mean() - exact) <= 5 * gap / 2 / n**0.5


def test_bfloat16_values_inf_and_nan_are_unchanged():
    every = torch.arange(1 << 16, dtype=torch.int32).mul(1 << 16).view(torch.float32)
    target = stochastic_round_(torch.empty(1 << 16).bfloat16(), every)
    number = ~every.isnan()
    assert torch.equal(target[number].float(), every[number]) and target[~number].isnan().all()
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, 0x7FFF8000, -1, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        assert payloads.isnan().all() and stochastic_round_(torch.empty(5).bfloat16(), payloads, draw).isnan().all()


def test_rounding_keeps_shape_and_strides_and_refuses_other_dtypes():
    value = torch.randn(6, 4).t()
    target = stochastic_round_(torch.empty(4, 6).bfloat16(), value, torch.Generator().manual_seed(0))
    torch.testing.assert_close(target.float(), value, rtol=2**-7, atol=0)
    same = [stochastic_round_(target, value, torch.Generator().manual_seed(s)).clone() for s in (1, 1, 2)]
    assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])
    for wrong in ((target.half(), value), (target, value.double())):
        with pytest.raises(TypeError, match="rounds float32 to bfloat16"):
            stochastic_round_(*wrong)


def test_small_updates_stall_or_move_on_average():
    """64 steps of 2**-11 from 1, an eighth of bfloat16's distance there.

    Nearest rounding never moves; float32 arrives at 1 - 2**-5; stochastic rounding does so on average. A step's
    variance is at most gap**2 / 4, so the mean of n weights lies within 5 sqrt(64 / 4 n) gaps.
    """
    n, steps, lr, gap = 4096, 64, 2.0**-11, 2.0**-8
    nearest, random = (nn.Parameter(torch.ones(n).bfloat16()) for _ in range(2))
    master = nn.Parameter(torch.ones(n).bfloat16())
    optimizers = [
        torch.optim.SGD([nearest], lr=lr),
        StochasticRounding([random], torch.optim.SGD, lr=lr),
        MasterWeights([master], torch.optim.SGD, lr=lr),
    ]
    for _ in range(steps):
        for p, optimizer in zip((nearest, random, master), optimizers, strict=True):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert (nearest == 1).all()
    assert (master == 1 - steps * lr).all()
    assert abs(random.double().mean().item() - (1 - steps * lr)) <= 5 * gap * (steps / 4 / n) ** 0.5
    assert random.unique().numel() > 5


def test_float16_weights_are_refused():
    p = nn.Parameter(torch.ones(2).half())
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match="float16"):
        StochasticRounding([p], torch.optim.SGD, lr=0.1).step()


# On ranks


def rounded_copies() -> dict[str, list]:
    """What each rank's weights become in one step that rounds: replicas, shards, and shards that have replicas."""
    found = {}
    for name, mesh in {
        "replicas": None,
        "shards": init_device_mesh("cpu", (4,)),
        "both": init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")),
    }.items():
        model = nn.Linear(64, 64, bias=False).bfloat16()
        nn.init.ones_(model.weight)
        if mesh is not None:
            fully_shard(model, mesh=mesh)
        optimizer = StochasticRounding(model.parameters(), torch.optim.SGD, lr=2.0**-10)
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        weight = model.weight.to_local() if mesh is not None else model.weight
        found[name] = weight.detach().tolist()
    return found


def test_replicas_round_alike_and_shards_apart():
    """If replicas did not, they would drift apart, with nothing to tell."""
    ranks = launch(rounded_copies, 4, device="cpu")
    assert all(found["replicas"] == ranks[0]["replicas"] for found in ranks)
    shards = [found["shards"] for found in ranks]
    assert all(a != b for i, a in enumerate(shards) for b in shards[:i])
    a, b, c, d = [found["both"] for found in ranks]  # ranks 0 and 1 hold one replica, 2 and 3 the other
    assert a == c and b == d and a != b


def sharded(wrapper) -> dict:
    """Five steps under fully_shard: full weights, state's dtypes, and a resumed run's weights."""
    model, resumed = (uneven(n_blocks=2, dtype=torch.bfloat16) for _ in range(2))
    for m in (model, resumed):
        for block in m.blocks:
            fully_shard(block)
        fully_shard(m)
    optimizer = wrapper(model.parameters(), torch.optim.AdamW, lr=1e-2)
    train(model, optimizer, 3)
    state = get_optimizer_state_dict(model, optimizer)
    again = wrapper(resumed.parameters(), torch.optim.AdamW, lr=1e-2)
    with torch.no_grad():
        for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
            q.copy_(p)
    set_optimizer_state_dict(resumed, again, state)
    dtypes = {v.dtype for p in resumed.parameters() for v in again.state[p].values() if isinstance(v, DTensor)}
    losses = train(model, optimizer, 3, first=3)
    train(resumed, again, 3, first=3)
    weights = [[p.full_tensor().float().tolist() for p in m.parameters()] for m in (model, resumed)]
    return {"weights": weights[0], "same": weights[0] == weights[1], "dtypes": dtypes, "losses": losses}


def alone() -> list:
    model = uneven(n_blocks=2, dtype=torch.bfloat16)
    train_alone(model, MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2), 2, 6)
    return [p.float().tolist() for p in model.parameters()]


def test_masters_and_stochastic_rounding_under_fully_shard():
    """With masters two ranks are one process to the bit; torch's distributed state dict carries float32 states."""
    [expected] = launch(alone, 1, device="cpu")
    for found, rounded in launch(lambda: (sharded(MasterWeights), sharded(StochasticRounding)), 2, device="cpu"):
        assert found["same"] and found["dtypes"] == {torch.float32}
        assert found["weights"] == expected
        assert rounded["dtypes"] == {torch.float32}
        assert rounded["losses"][-1] < rounded["losses"][0]


def test_masters_of_an_optimizer_for_matrices():
    p = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterWeights([p], torch.optim.Muon, lr=0.1)
    p.grad = torch.eye(4, dtype=torch.bfloat16)
    optimizer.step()
    assert (p != 1).any()
