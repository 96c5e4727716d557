"""CPUOffloadOptimizer trains as the optimizer does that it runs on the host, and copies the bytes that it says.

On a CPU host and device are one: these tests show results, bytes and who keeps what, not that copies overlap.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import decoder, train, uneven

from shardlab import launch
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.fsdp import fully_shard as our_fully_shard
from shardlab.shard_groups import local

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    "SGD": (torch.optim.SGD, {"lr": 1e-1, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),  # each parameter by itself, though not element by element
}


def one_block() -> nn.Module:
    return uneven(n_blocks=1)


def plain(make):
    return make()


def ddp(make):
    return DDP(make())


def sharded(make):
    model = make()
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def sharded_by_us(make):
    model = make()
    for block in model.blocks:
        our_fully_shard(block)
    return our_fully_shard(model)


def hybrid(make):
    return fully_shard(make(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def weights(model) -> list[torch.Tensor]:
    return [local(p).clone() for p in model.parameters()]


def same(a, b) -> bool:
    return all(map(torch.equal, a, b))


# Equal to the optimizer itself, to the bit


def assert_as_on_the_device(make, steps: int, cases: dict[int, list]) -> None:
    """Losses and weights of so many steps; `cases`, by number of ranks: (wrapper, name of the optimizer)."""

    def both(wrap, optimizer_class, defaults):
        results = []
        for build in (optimizer_class, lambda params, **d: CPUOffloadOptimizer(params, optimizer_class, **d)):
            model = wrap(make)
            results.append((train(model, build(model.parameters(), **defaults), steps), weights(model)))
        (losses, expected), (found_losses, found) = results
        return losses == found_losses and same(expected, found)

    def ranks(chosen):
        return {(wrap.__name__, name): both(wrap, *OPTIMIZERS[name]) for wrap, name in chosen}

    for world_size, chosen in cases.items():
        for equal in launch(ranks, world_size, chosen):
            assert len(equal) == len(chosen)
            assert all(equal.values()), equal


def test_training_equals_the_optimizer_on_the_device():
    """Every optimizer by itself, and every wrapper with one or two of them."""
    wrapped = [(ddp, "AdamW"), (sharded, "AdamW"), (sharded, "Adagrad"), (sharded_by_us, "SGD")]
    assert_as_on_the_device(one_block, 3, {1: [(plain, name) for name in OPTIMIZERS], 2: wrapped})


@pytest.mark.night
@pytest.mark.parametrize("make", [uneven, decoder])
def test_training_equals_any_optimizer_on_the_device_for_6_steps(make):
    """Under every wrapper; Adafactor looks at whole parameters, so not when sharded."""
    pairs = [(wrap, name) for wrap in (ddp, sharded, sharded_by_us) for name in OPTIMIZERS]
    wrapped = [(wrap, name) for wrap, name in pairs if wrap is ddp or name != "Adafactor"]
    assert_as_on_the_device(make, 6, {1: [(plain, name) for name in OPTIMIZERS], 2: wrapped})


def test_groups_schedulers_and_accumulation():
    """Two groups, one without decay, one added later; a scheduler; three backwards a step; frozen and unused ones."""

    def run(build):
        model = uneven()
        model.blocks[0].up.weight.requires_grad_(False)
        wrapped = fully_shard(model) if dist.get_world_size() > 1 else model
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = build([{"params": parameters[:4]}, {"params": parameters[4:9], "weight_decay": 0.0}])
        optimizer.add_param_group({"params": parameters[9:], "lr": 3e-3})
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        for step in range(4):
            for micro_batch in range(3):
                draw = torch.Generator().manual_seed(10 * step + micro_batch)
                tokens = torch.randint(256, (2, 9), generator=draw)
                wrapped(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return weights(model), [group["lr"] for group in optimizer.param_groups]

    def ranks():
        expected, rates = run(lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1))
        found, found_rates = run(lambda groups: CPUOffloadOptimizer(groups, lr=1e-2, weight_decay=0.1))
        return same(expected, found), rates == found_rates

    assert launch(ranks, 1) + launch(ranks, 2) == [(True, True)] * 3


@pytest.mark.parametrize(
    ("world_size", "wraps"),
    [(2, (ddp, sharded)), (4, (hybrid,)), pytest.param(1, (plain,), marks=pytest.mark.night)],
    ids=["2", "hybrid", "plain"],
)
def test_clipping_equals_torchs(world_size, wraps):
    """The same norm and weights up to the rounding of a sum of squares, plain, sharded and on a 2-D mesh."""

    def run(wrap, norm_type, offload):
        model = wrap(one_block)
        build = CPUOffloadOptimizer if offload else torch.optim.AdamW
        optimizer = build(model.parameters(), lr=1e-2)
        norms = []

        def clip():
            if offload:
                norms.append(optimizer.clip_grad_norm_(0.05, norm_type).item())
            else:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type)
                norms.append((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item())

        train(model, optimizer, 2, before_step=clip)
        return torch.tensor(norms), weights(model)

    def ranks():
        cases = {f"{wrap.__name__}, norm {norm}": (wrap, norm) for wrap in wraps for norm in (2.0, 1.0)}
        return {name: (run(*case, True), run(*case, False)) for name, case in cases.items()}

    for pairs in launch(ranks, world_size):
        for name, ((norms, found), (expected_norms, expected)) in pairs.items():
            assert (expected_norms > 0.05).all(), name
            torch.testing.assert_close(norms, expected_norms, rtol=1e-6, atol=0)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


# What is copied, and what stays where


def test_bytes_copied_equal_the_formula():
    """A step copies this rank's share of the gradients to the host once a backward, and of the parameters back once."""

    def ranks(wrap, backwards):
        model = wrap(decoder)
        held = sum(local(p).nbytes for p in model.parameters())
        optimizer = CPUOffloadOptimizer(model.parameters(), lr=1e-2)
        for _ in range(2):
            for _ in range(backwards):
                tokens = torch.zeros(1, 8, dtype=torch.int64)
                model(tokens, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer.bytes_to_host / held, optimizer.bytes_to_device / held

    def each():
        return ranks(sharded, 1), ranks(sharded_by_us, 1), ranks(sharded, 3)

    assert launch(ranks, 1, plain, 1) == [(2, 2)]
    assert launch(each, 3) == [((2, 2), (2, 2), (6, 2))] * 3


def test_the_device_keeps_no_gradient_and_no_state():
    """A gradient is gone before the next one is there; under DDP, which averages until backward ends, after `step`."""

    def ranks(wrap):
        model = wrap(uneven)
        optimizer = CPUOffloadOptimizer(model.parameters(), lr=1e-2)
        parameters = list(model.parameters())  # once: within backward FSDP shows unsharded ones in their place
        most_at_once = []
        for p in parameters:
            p.register_post_accumulate_grad_hook(
                lambda _: most_at_once.append(sum(q.grad is not None for q in parameters))
            )
        train(model, optimizer, 1)
        kept = [p.grad is not None for p in parameters]
        host = {t.untyped_storage().data_ptr() for states in optimizer.state.values() for t in states.values()}
        device = {local(p).untyped_storage().data_ptr() for p in model.parameters()}
        return max(most_at_once), any(kept), len(optimizer.state) == len(kept), bool(host & device)

    assert launch(ranks, 1, plain) == [(0, False, True, False)]
    for under_fsdp, (most_at_once, *rest) in launch(lambda: (ranks(sharded), ranks(ddp)), 2):
        assert under_fsdp == (0, False, True, False)
        assert most_at_once > 1
        assert rest == [False, True, False]


# State


def test_state_dict_is_the_optimizers_own_and_resumes():
    """Into a fresh offloaded optimizer, into a plain one and back: all go on to the same bits."""

    def ranks():
        def fresh(build):
            model = uneven()
            return model, build(model.parameters(), lr=1e-2)

        def resumed(build, saved):
            model, optimizer = fresh(build)
            optimizer.param_groups[0]["lr"] = 1.0
            optimizer.load_state_dict(copy.deepcopy(saved[1]))  # which the optimizer may go on in
            model.load_state_dict(saved[0])  # after the optimizer has made its host copies
            train(model, optimizer, 3, first=3)
            return weights(model)

        ends = []
        for build in (torch.optim.AdamW, CPUOffloadOptimizer):
            model, optimizer = fresh(build)
            train(model, optimizer, 3)
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            train(model, optimizer, 3, first=3)
            ends += [weights(model), resumed(torch.optim.AdamW, saved), resumed(CPUOffloadOptimizer, saved)]
        return all(same(end, ends[0]) for end in ends)

    assert launch(ranks, 1) == [True]


@pytest.mark.parametrize("zeroed_by", ["optimizer", "model"])
def test_gradients_add_up_until_a_step_uses_them(zeroed_by):
    """So that it does not matter who zeroes them: the model has none left that it could."""

    def run(build):
        model = uneven()
        optimizer = build(model.parameters(), lr=1e-2)
        tokens = torch.arange(9)[None]
        for _ in range(2):
            for _ in range(2):
                model(tokens, tokens).backward()
            optimizer.step()
            {"optimizer": optimizer, "model": model}[zeroed_by].zero_grad()
        before = weights(model)
        optimizer.step()
        return before, same(before, weights(model))

    def ranks():
        (expected, _), (found, unchanged) = run(torch.optim.AdamW), run(CPUOffloadOptimizer)
        return same(expected, found), unchanged

    assert launch(ranks, 1) == [(True, True)]


def test_closure_runs_with_gradients_on():
    def ranks():
        model = uneven()
        optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        tokens = torch.zeros(1, 8, dtype=torch.int64)

        def closure():
            loss = model(tokens, tokens)
            loss.backward()
            return loss

        return optimizer.step(closure).item() > optimizer.step(closure).item()

    assert launch(ranks, 1) == [True]
