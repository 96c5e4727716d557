"""Slept computation: where in a step it falls, how long it takes, and that results stay what they were."""

import copy
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as torch_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from shardlab import fsdp, launch
from shardlab.recompute import checkpoint_wrapper
from shardsim import cpu_streams, simulated, slept_computation
from shardsim.slept_computation import clear, computations, compute, sleep_in


@pytest.fixture(autouse=True)
def log():
    clear()


class Clock:
    """Real computation takes no time, and sleeps end `late_s` late."""

    now_s = late_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cpu_streams, "time", clock)
    monkeypatch.setattr(slept_computation, "time", clock)
    monkeypatch.setattr(slept_computation, "_overslept_s", 0.0)
    return clock


def slept() -> list[tuple[str, str]]:
    return [(c.kind, c.name) for c in computations()]


def seconds(kind: str) -> float:
    return sum(c.finished_s - c.started_s for c in computations() if c.kind == kind)


def model(forward_s: float = 1e-3, **options) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    for i, block in enumerate(blocks):
        sleep_in(block, forward_s, name=str(i), **options)
    return blocks


def train(module: nn.Module) -> torch.Tensor:
    """The loss of a step."""
    torch.manual_seed(1)
    loss = module(torch.randn(4, 8)).square().mean()
    loss.backward()
    return loss.detach()


FORWARD, BACKWARD = [("forward", str(i)) for i in range(3)], [("backward", str(i)) for i in (2, 1, 0)]


def test_a_step_sleeps_forward_and_twice_as_long_backward(clock):
    train(model(5.0))
    assert clock.now_s == pytest.approx(3 * 15)
    assert slept() == FORWARD + BACKWARD
    assert seconds("backward") == 2 * seconds("forward")


def test_backward_takes_what_it_is_told(clock):
    train(model(1.0, backward_s=20.0))
    assert (seconds("forward"), seconds("backward")) == (3, 60)


def test_a_straggler_takes_its_times_as_long(clock):
    train(model(1.0, times=3.0))
    assert (seconds("forward"), seconds("backward")) == (9, 18)


def test_a_sleep_is_slept_on_the_real_clock():
    start = time.monotonic()
    train(model(5e-3))
    assert time.monotonic() - start > 3 * 15e-3


@pytest.mark.parametrize(("late_s", "expected_s"), [(1e-4, 0.1 + 1e-4), (2e-3, 0.05 + 200 * 2e-3 + 0.25e-3)])
def test_sleeping_late_does_not_add_up(clock, late_s, expected_s):
    """200 naps of 0.5 ms. One that is very late shortens the next to half, no more."""
    clock.late_s = late_s
    for _ in range(200):
        compute(0.5e-3)
    assert clock.now_s == pytest.approx(expected_s)


def test_losses_and_gradients_are_what_they_were_to_the_bit():
    ours = model()
    plain = copy.deepcopy(ours)
    for block in plain:
        del block.forward
    assert torch.equal(train(ours), train(plain))
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert len(slept()) == 6, "the plain one did not sleep"


def test_gradients_are_ready_after_the_sleep():
    m, seen = model(), []
    for i, block in enumerate(m):
        for p in block.parameters():
            p.register_post_accumulate_grad_hook(lambda _, i=i: seen.append((i, len(slept()) - 3)))
    train(m)
    assert seen == [(2, 1), (2, 1), (1, 2), (1, 2), (0, 3), (0, 3)], "block, and how many blocks have slept in backward"


def with_calls(m: nn.Sequential, **options) -> nn.Sequential:
    for i, block in enumerate(m):
        m[i] = nn.Sequential(block)
        m[i].forward = partial(torch_checkpoint, block, **options)
    return m


def with_wrappers(m: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*map(torch_wrapper, m))


def with_ours(m: nn.Sequential) -> nn.Sequential:
    for block in m:
        checkpoint_wrapper(block)
    return m


@pytest.mark.parametrize("wrap", [with_ours, with_wrappers, partial(with_calls, use_reentrant=False)])
def test_recomputation_sleeps_again(wrap):
    train(wrap(model()))
    again = [step for kind, i in BACKWARD for step in ((kind, i), ("forward", i))]
    assert slept() == FORWARD + again


def test_reentrant_recomputation_sleeps_again():
    """Its backward is a forward with a graph, and then a backward."""
    m = with_calls(model(), use_reentrant=True)
    m[0](torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert slept() == [("forward", "0"), ("forward", "0"), ("backward", "0")]


def test_without_gradients_only_forward_sleeps():
    with torch.no_grad():
        model()(torch.randn(4, 8))
    assert slept() == FORWARD


class Mixed(nn.Module):
    """Two tensors that need gradients, one that can't have one, and something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return {"a": self.a(x), "rest": [self.b(x), x.argmax(), "words"]}


@pytest.mark.parametrize("use", ["both", "one"])
def test_any_structure_of_outputs_sleeps_once(use):
    m = Mixed()
    sleep_in(m, 0.0, name="mixed")
    out = m(torch.randn(2, 4))
    assert out["rest"][1].dtype == torch.int64 and out["rest"][2] == "words"
    (out["a"].sum() + (out["rest"][0].sum() if use == "both" else 0)).backward()
    assert slept() == [("forward", "mixed"), ("backward", "mixed")]
    assert (m.b.weight.grad is not None) == (use == "both")


def test_an_output_may_be_changed_in_place():
    """tanh keeps what it returned for its backward."""
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    sleep_in(m, 0.0)
    x = torch.randn(2, 4)
    (found,) = torch.autograd.grad(m(x).mul_(2).sum(), [m[0].weight])
    (expected,) = torch.autograd.grad(m[1](m[0](x)).mul(2).sum(), [m[0].weight])
    assert torch.equal(found, expected)


def test_removed_it_is_awake():
    m = nn.Linear(8, 8)
    sleep_in(m, 1.0).remove()
    train(m)
    assert slept() == []


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, torch_wrapper, lambda m: sleep_in(m, 1.0) and m])
def test_what_is_wrapped_or_sleeps_is_refused(wrap):
    refused(wrap(nn.Linear(2, 2)))


def refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="call sleep_in first, and once, then wrap"):
        sleep_in(module, 1.0)


@pytest.mark.parametrize("wrong", [{"forward_s": -1.0}, {"forward_s": 1.0, "backward_s": -1.0}])
def test_negative_times_are_refused(wrong):
    with pytest.raises(ValueError, match="0 s or more"):
        sleep_in(nn.Linear(2, 2), **wrong)


def test_run_ahead_sleeps_when_it_is_asked_for_the_time(clock):
    with cpu_streams.run_ahead():
        train(model(50.0))
        assert clock.now_s == 0
        cpu_streams.synchronize()
        assert clock.now_s == 3 * (50 + 100)
    for before, after in zip(computations(), computations()[1:], strict=False):
        assert after.started_s == before.finished_s


# ------------------------------------------------------------------------------------------------------------ on ranks


def wrapped() -> dict[str, list[tuple[str, str]]]:
    """What sleeps below each engine, in a step."""
    whole = {"torch's DDP": DistributedDataParallel, "torch's FSDP1": torch_fsdp1}
    flat = partial(fsdp.fully_shard, layout=fsdp.FlatParameter)
    sharded = {"torch's FSDP2": fully_shard, "our FSDP2": fsdp.fully_shard, "our FSDP2, flat": flat}
    found = {}
    for name, wrap in (whole | sharded).items():
        m = model()
        if name in sharded:
            for block in m:
                wrap(block)
        m = wrap(m)
        clear()
        train(m)
        found[name] = slept()
        if "FSDP1" in name:
            refused(m)
    return found


def torch_fsdp1(m: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(m, auto_wrap_policy=is_block, device_id=torch.device("cpu"))


def is_block(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    return recurse or len(list(module.children())) == 2


def test_it_sleeps_below_every_engine():
    for found in launch(wrapped, 2, device="cpu", network=simulated("infinitely fast")):
        assert len(found) == 5
        for name, steps in found.items():
            assert steps == FORWARD + BACKWARD, name
