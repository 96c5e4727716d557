"""GradScaler is torch's, step for step: in one process torch.amp.GradScaler, on shards ShardedGradScaler.

An overflow on one rank's shard skips the step on every rank, and the scaler tells where it was.
"""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from training import samples, uneven
from two_layers import offloaded_sgd, sharded_sgd, two_layers

from shardlab import LaunchError, launch
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.measure.traffic import record_traffic
from shardlab.precision import GradScaler, MasterWeights
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

TorchScaler = torch.amp.GradScaler
OPTIONS = {"init_scale": 2.0**10, "growth_interval": 3}
OVERFLOWS = {2: float("inf"), 7: float("nan"), 8: float("-inf")}  # by step: what the gradient becomes


def model_and_input() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.randn(4, 8)


def run(scaler, steps: int = 12, *, clip: bool = False, resumed: dict | None = None) -> list:
    """One process: scale, skips, weights and state of every step; some overflow."""
    model, x = model_and_input()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for step in range(steps):
        if resumed is not None and step == 5:
            scaler.load_state_dict(resumed)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if step in OVERFLOWS:
            model[1].bias.grad[0] = OVERFLOWS[step]
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), scaler.state_dict(), [p.tolist() for p in model.parameters()]))
    return found


@pytest.mark.parametrize("clip", [False, True])
def test_one_process_is_torchs_to_the_bit(clip):
    ours, theirs = run(GradScaler(**OPTIONS), clip=clip), run(TorchScaler("cpu", **OPTIONS), clip=clip)
    assert ours == theirs
    scales = [scale / 2**10 for scale, *_ in ours]
    assert scales == [1, 1, 0.5, 0.5, 0.5, 1, 1, 0.5, 0.25, 0.25, 0.25, 0.5]
    weights = [w for *_, w in ours]
    assert [i for i in range(1, 12) if weights[i] == weights[i - 1]] == [*OVERFLOWS]


def test_either_scaler_loads_the_others_state():
    state = TorchScaler("cpu", init_scale=2.0**5, growth_interval=2, growth_factor=4.0).state_dict()
    ours = run(GradScaler(**OPTIONS), resumed=state)
    assert ours == run(TorchScaler("cpu", **OPTIONS), resumed=GradScaler(None, 2.0**5, 4.0, 0.5, 2).state_dict())
    assert ours[5][0] == 2.0**5


def test_it_skips_the_optimizers_that_overflowed_and_no_other():
    """As torch does; the scale backs off for all, and each part of the loss is scaled alike."""

    def three(scaler):
        models = [model_and_input()[0] for _ in range(3)]
        optimizers = [torch.optim.SGD(m.named_parameters(), lr=0.1) for m in models]
        losses = scaler.scale([m(torch.ones(1, 8)).sum() for m in models])
        assert type(losses) is list
        sum(losses).backward()
        models[0][0].weight.grad[3, 3] = models[2][1].bias.grad[0] = float("inf")
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), [[p.tolist() for p in m.parameters()] for m in models]

    ours = GradScaler(**OPTIONS)
    assert three(ours) == three(TorchScaler("cpu", **OPTIONS))
    assert ours.overflowed == {0: ["0.weight", "1.bias"]}


def test_disabled_it_does_nothing():
    scaler, loss, (model, x) = GradScaler(enabled=False), torch.ones(()), model_and_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    before = copy.deepcopy(model.state_dict())
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1 and scaler.state_dict() == {}
    assert not scaler.is_enabled() and not torch.equal(before["0.weight"], model[0].weight)


def test_calls_in_the_wrong_order_are_refused():
    (model, x), scaler = model_and_input(), GradScaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="nothing to go by"):
        scaler.update()
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="called already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="called already"):
        scaler.step(optimizer)
    scaler.update()
    scaler.update(2.0**3)
    assert scaler.get_scale() == 8


def test_the_scale_stays_within_float32():
    scaler, p = GradScaler(init_scale=2.0**126, growth_interval=1), nn.Parameter(torch.ones(1))
    for _ in range(3):
        p.grad = torch.ones(1)
        scaler.step(torch.optim.SGD([p], lr=0.0))
        scaler.update()
    assert scaler.get_scale() == 2.0**127


# float16 gradients


@pytest.mark.parametrize("make", [GradScaler, lambda **o: TorchScaler("cpu", **o)])
def test_masters_unscale_in_float32(make):
    """A gradient of 2**-26 is nothing in float16; scaled it is there, and its master moves. torch's scaler, too."""
    weight, overflowing = nn.Parameter(torch.ones(4).half()), nn.Parameter(torch.ones(1).half())
    optimizer = MasterWeights([weight, overflowing], torch.optim.SGD, lr=1.0)
    scaler = make(init_scale=2.0**12)
    for grad in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight.float() * 2.0**-26).sum()).backward()
        assert weight.grad.dtype == torch.float16 and (weight.grad > 0).all()
        overflowing.grad = torch.tensor([grad]).half()
        scaler.step(optimizer)
        scaler.update()
        assert not hasattr(optimizer, "grad_scale")
    assert scaler.get_scale() == 2.0**11
    master = optimizer.state[weight]["master"].double() - 1
    assert torch.equal(optimizer.state[weight]["master"], torch.full((4,), 1.0) - 2.0**-26 - 2.0**-26), master
    assert optimizer.state[overflowing]["master"].item() == pytest.approx(1 - 2.0**-12 - 2.0**-11)


def test_float16_gradients_without_masters_are_refused():
    """By name, and with the fix; torch.amp.GradScaler says "Attempting to unscale FP16 gradients"."""
    weight = nn.Parameter(torch.ones(4).half())
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="rank 0: the gradient of up is float16.*MasterWeights"):
        GradScaler().step(torch.optim.SGD([("up", weight)], lr=1.0))


# On ranks

ODD = 1  # the rank whose shard overflows


def sharded(make, steps: int = 10, **options) -> dict:
    """fp16 computation from float32 shards: scales and weights of every step, skipped steps, and who overflowed.

    Its start scale is so large that the first steps overflow by themselves; in step 7 one gradient of rank ODD does.
    """
    warnings.simplefilter("ignore", FutureWarning)
    model, policy = uneven(n_blocks=2, dtype=torch.float32), MixedPrecisionPolicy(param_dtype=torch.float16)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    scaler, found = make(**options), []
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(*samples(step, dist.get_rank(), dist.get_world_size()))).backward()
        if step == 7 and dist.get_rank() == ODD:
            model.blocks[1].up.weight.grad.to_local()[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        local = [p.to_local().tolist() for p in model.parameters()]
        found.append((scaler.get_scale(), local, getattr(scaler, "overflowed", None)))
    return {
        "scales": [scale for scale, *_ in found],
        "weights": [weights for _, weights, _ in found],
        "overflowed": [by_rank for *_, by_rank in found],
    }


def torchs(**options):
    return ShardedGradScaler("cpu", **options)


def both(**options) -> tuple[dict, dict]:
    return sharded(GradScaler, **options), sharded(torchs, **options)


@pytest.mark.parametrize("n", [2, 3])
def test_on_shards_it_is_torchs_to_the_bit(n):
    ranks = launch(lambda: both(init_scale=2.0**17, growth_interval=4), n, device="cpu")
    for ours, theirs in ranks:
        assert ours["scales"] == theirs["scales"] == ranks[0][0]["scales"]
        assert ours["weights"] == theirs["weights"]
        skipped = [i for i in range(1, 10) if ours["weights"][i] == ours["weights"][i - 1]]
        overflowed = ours["overflowed"]
        assert [i for i in range(1, 10) if overflowed[i]] == skipped
        assert skipped == [1, 6, 7], "2**16 is inf in float16; 2**15 works for four steps, and grows"
        assert overflowed[7] == {ODD: ["blocks.1.up.weight"]}, "on one rank alone, and every rank knows"
        assert overflowed == ranks[0][0]["overflowed"]
        assert overflowed[0].keys() == set(range(n)), "a scale too large overflows everywhere"


class DoesNotAsk(GradScaler):
    """The mistake that there is no switch for."""

    def _of_all_ranks(self, names, device):
        return {dist.get_rank(): names} if names else {}


def test_ranks_that_do_not_ask_each_other_diverge():
    """What the all_reduce is for: without it, a rank that overflows alone skips alone. The comparison above sees it."""
    ranks = launch(lambda: sharded(DoesNotAsk, init_scale=2.0**8, growth_interval=100), 2, device="cpu")
    scales = [found["scales"] for found in ranks]
    assert scales[0][6] == scales[1][6] and scales[0][7] == 2 * scales[1][7]
    assert [found["weights"][7] == found["weights"][6] for found in ranks] == [False, True]


def costs() -> list[dict]:
    """What a step's unscale sends, with and without an overflow; and with ranks each for themselves."""
    p = nn.Parameter(torch.ones(5 if dist.get_rank() else 0))
    optimizer, found = torch.optim.SGD([p], lr=0.1), []
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    for gradient, group in ((1.0, None), (float("inf"), None), (float("inf"), alone)):
        scaler = GradScaler(process_group=group)
        p.grad = torch.full_like(p, gradient)
        with record_traffic() as traffic:
            scaler.step(optimizer)
        scaler.update()
        sizes = [c.input_bytes for c in traffic.collectives if c.kind == "all_reduce"]
        found.append((sizes, traffic.count("all_gather") > 0, scaler.overflowed))
    return found


def test_a_step_sends_four_bytes():
    """Names go round only after an overflow, and an empty shard takes part. Models apart have groups apart."""
    for rank, (fine, overflow, alone) in enumerate(launch(costs, 3, device="cpu")):
        assert fine == ([4], False, {})
        name = ["parameter 0 of group 0"]
        assert overflow == ([4], True, {1: name, 2: name})
        assert alone[2] == ({rank: name} if rank else {})


def incurable() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([("blocks.0.up.weight", p)], lr=0.1), GradScaler(init_scale=4.0)
    for _ in range(3):
        p.grad = torch.ones(3)
        if dist.get_rank() == 2:
            p.grad[1] = float("nan")
        scaler.step(optimizer)
        scaler.update()


def test_an_overflow_that_no_scale_cures_is_named():
    """4, 2, 1, and then it is not the scale's fault."""
    with pytest.raises(LaunchError) as caught:
        launch(incurable, 3, device="cpu")
    said = "FloatingPointError: fp16 overflow on rank 2 alone, in blocks.0.up.weight, at a loss scale of only 1"
    assert said in str(caught.value) and "bfloat16" in str(caught.value)


# Optimizers that hold gradients themselves


def zero_1(model, **options):
    return model, ZeroRedundancyOptimizer(model.named_parameters(), torch.optim.SGD, **options)


def zero_1_under_ddp(model, **options):
    return DDP(model), ZeroRedundancyOptimizer(
        model.named_parameters(), torch.optim.SGD, gradients_averaged=True, **options
    )


def zero_2(model, **options):
    optimizer = ZeroRedundancyOptimizer(model.named_parameters(), torch.optim.SGD, **options)
    return ShardedDataParallel(model, optimizer), optimizer


def offloaded(model, **options):
    return DDP(model), CPUOffloadOptimizer(model.named_parameters(), torch.optim.SGD, **options)


def test_gradients_that_an_optimizer_holds_are_unscaled_and_looked_at():
    """As DDP with plain SGD trains; the step in which one rank's input is inf is left out on all."""

    def trained(make):
        torch.manual_seed(0)
        model, optimizer = make(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), lr=0.1)
        scaler = GradScaler(**OPTIONS)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.ones(2, 8) * (step + 1)
            if step == 2 and dist.get_rank() == ODD:
                x[0, 0] = float("inf")
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.detach() for p in model.parameters()], scaler.get_scale()

    def ranks():
        expected = trained(lambda model, lr: (DDP(model), torch.optim.SGD(model.named_parameters(), lr=lr)))
        return expected, {s.__name__: trained(s) for s in (zero_1, zero_1_under_ddp, zero_2, offloaded)}

    for (weights, scale), by_strategy in launch(ranks, 2, device="cpu"):
        assert scale == 2.0**9
        for name, (found, its_scale) in by_strategy.items():
            torch.testing.assert_close(found, weights, msg=lambda m, name=name: f"{name}: {m}")
            assert its_scale == scale, name
            assert all(p.isfinite().all() for p in found), name


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


@pytest.mark.parametrize("make", [offloaded_sgd, sharded_sgd])
def test_an_overflow_is_over_when_the_model_drops_its_gradients(make):
    assert launch(scales, 2, make)[0] == [2.0**15] * 3


def test_a_scaled_step_takes_no_closure():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for scaler in (GradScaler("cpu"), torch.amp.GradScaler("cpu")):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        with pytest.raises(RuntimeError, match="Closure use is not"):
            scaler.step(optimizer, closure=lambda: None)
