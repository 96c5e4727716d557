"""The probes let every engine pass for what it is, and stop impostors by name: each check one that no other stops."""

import gc
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import ShardingStrategy, fully_shard

from shardbench.engines import ENGINES, OURS, TORCH, Engine, data_parallel, fsdp1, fsdp2, zero_1, zero_2
from shardlab import launch, text_batches
from shardlab.measure.ledger import CATEGORIES
from shardlab.model import ModelConfig, Transformer
from shardplan.compare_formulas import CHECKS, ELSEWHERE, WHEN, failures
from shardplan.formulas import STRATEGIES, Expected, units_of
from shardplan.sharding_evidence import MOMENTS, Evidence, Sent, _peaks, probe

# A block is about 1/7 of it; embedding, last norm and output together 1/8. Every dim 0 divides by 4.
CONFIG = ModelConfig(vocab_size=256, dim=64, n_layers=6, n_heads=4, n_kv_heads=2, hidden_dim=128, max_seq_len=32)
PSI = 4 * CONFIG.n_params
TENSORS = 3 + 9 * CONFIG.n_layers
CAP_MB = 0.2
HIDDEN_SHARE = 0.5


def build() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG)


def expected(strategy: str, world_size: int, **options) -> Expected:
    with torch.device("meta"):
        model = Transformer(CONFIG)
    options = {"bucket_bytes": int(CAP_MB * 2**20), "hidden_share": HIDDEN_SHARE} | options
    return Expected(strategy, units_of(model, model.blocks), world_size, **options)


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters())


# ------------------------------------------------------------------------------------------------------- the formulas


def test_the_formulas_are_the_papers():
    """ZeRO, figure 1: Psi = 7.5 billion, 64 ranks, mixed precision with Adam: 120, 31.4, 16.6 and 1.9 GB."""
    model = [[torch.empty(7_500_000_000, dtype=torch.bfloat16, device="meta")]]

    def gigabytes(strategy):
        x = Expected(strategy, model, 64, state_bytes=12)
        return (x.parameters + x.gradients + x.optimizer_states) / 1e9

    figures = {"DDP": 120, "ZERO_1": 31.4, "ZERO_2": 16.6, "FULL_SHARD": 1.9}
    assert {s: gigabytes(s) for s in figures} == pytest.approx(figures, abs=0.05)


def test_traffic_is_the_papers():
    """ZeRO, section 7: stages 1 and 2 send what data parallelism does, stage 3 half as much again."""
    baseline = expected("DDP", 4).wire_bytes
    assert baseline == 2 * PSI * 3 / 4
    assert [expected(s, 4).wire_bytes / baseline for s in ("ZERO_1", "ZERO_2", "SHARD_GRAD_OP")] == [1, 1, 1]
    assert expected("FULL_SHARD", 4, root_reshards=True).wire_bytes / baseline == 1.5
    assert {expected(s, 1).wire_bytes for s in STRATEGIES} == {0}


def test_a_replica_of_shards_sends_its_shard_to_the_others():
    inner, hybrid = expected("FULL_SHARD", 2), expected("FULL_SHARD", 4, shard_size=2)
    assert hybrid.wire_bytes - inner.wire_bytes == 2 * (PSI / 2) * (2 - 1) / 2
    assert hybrid.parameters == inner.parameters == PSI / 2


def test_half_precision_halves_what_is_sent_in_it():
    full = expected("FULL_SHARD", 2, root_reshards=True).wire_bytes
    gathers, reduces = full * 2 / 3, full / 3
    half = {"root_reshards": True, "param_dtype": torch.bfloat16}
    assert expected("FULL_SHARD", 2, **half).wire_bytes == gathers / 2 + reduces
    assert expected("FULL_SHARD", 2, reduce_dtype=torch.bfloat16, **half).wire_bytes == gathers / 2 + reduces / 2


def test_uneven_parameters_count_with_their_padding():
    x = Expected("FULL_SHARD", [[torch.empty(9, 5), torch.empty(1)]], 4)
    assert x.parameters == 4 * (3 * 5 + 1)


def test_a_tied_weight_belongs_to_the_first_unit_that_has_it():
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    b.weight = a.weight
    assert [[tuple(p.shape) for p in unit] for unit in units_of(nn.Sequential(a, b), [a, b])] == [[(4, 4)], [(4,)], []]


def test_an_unknown_strategy_names_those_that_there_are():
    with pytest.raises(ValueError, match="no strategy 'ZERO_3'; there are DDP, .*FULL_SHARD"):
        expected("ZERO_3", 2)


# --------------------------------------------------------------------------------------------- evidence that is made up


def just_allowed(x: Expected) -> Evidence:
    """All that is promised, and as much as that allows."""
    held = {"parameters": x.parameters, "gradients": x.gradients, "optimizer_states": x.optimizer_states}
    held = {moment: dict.fromkeys(CATEGORIES, 0) | held for moment in MOMENTS}
    held["forward"]["unsharded"] = x.unsharded_after_forward
    peak = {"gradients": x.gradients_peak, "unsharded": x.unsharded_peak}
    return Evidence(0, held, peak, (Sent("reduce_scatter", 4, x.reduced_elements, x.wire_bytes, True),), ())


LOOKED_AT = [  # by which check, what, and when
    ("parameters_sharded", "parameters", ("init", "between")),
    ("gradients_sharded", "gradients", ("backward", "step", "between")),
    ("optimizer_states_sharded", "optimizer_states", ("step", "between")),
    ("freed_after_use", "unsharded", ("forward", "backward", "step", "between")),
    *(("nothing_else_held", category, ("init", "between")) for category in ELSEWHERE),
]


def test_a_byte_more_is_found_at_each_moment_that_counts():
    x = expected("FULL_SHARD", 4)
    e = just_allowed(x)
    assert failures(e, x) == {}
    for check, category, moments in LOOKED_AT:
        for moment in moments:
            more = e.held[moment][category] + x.spare_bytes
            held = {n: e.held | {moment: e.held[moment] | {category: more + n}} for n in (0, 1)}
            assert failures(replace(e, held=held[0]), x) == {}, (category, moment)
            found = failures(replace(e, held=held[1]), x)
            assert set(found) == {check} and WHEN[moment] in found[check], (category, moment, found)


def test_a_byte_more_at_once_is_found():
    x = expected("FULL_SHARD", 4)
    e = just_allowed(x)
    for category, check in (("gradients", "gradients_sharded"), ("unsharded", "few_units_at_once")):
        more = e.peak | {category: e.peak[category] + x.spare_bytes + 1}
        assert set(failures(replace(e, peak=more), x)) == {check}


def test_what_must_be_sent_is_counted_to_the_element():
    x = expected("FULL_SHARD", 4, hidden_share=0.5)
    e = just_allowed(x)
    [all_of_it] = e.sent
    assert set(failures(replace(e, sent=(replace(all_of_it, elements=x.reduced_elements - 1),)), x)) == {
        "gradients_reduced"
    }
    assert set(failures(replace(e, sent=(replace(all_of_it, hidden=False),)), x)) == {"overlap"}
    more = replace(all_of_it, kind="all_gather", wire_bytes=x.spare_bytes + 1)
    assert set(failures(replace(e, sent=(all_of_it, more)), x)) == {"wire_bytes"}
    assert set(failures(replace(e, sent_in_no_sync=(all_of_it,)), x)) == {"accumulates_locally"}


def test_the_peak_of_states_is_at_one_moment_and_without_activations():
    """Parameters and gradients, 5 and 6 at most, are 10 at most together."""
    moments = [{"parameters": 5, "gradients": 2}, {"parameters": 4, "gradients": 6}, {"parameters": 1, "other": 20}]
    found = _peaks([dict.fromkeys(CATEGORIES, 0) | {"activations": 30} | moment for moment in moments])
    assert (found["parameters"], found["gradients"], found["activations"], found["other"]) == (5, 6, 30, 20)
    assert (found["states"], found["total"]) == (10, 51)


# ------------------------------------------------------------------------------- impostors: each claims what is not so


class BroadcastAndAllReduce(nn.Module):
    """Trains correctly, and shards nothing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self._average)

    def _average(self, p: nn.Parameter) -> None:
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    def forward(self, *args):
        for p in self.module.parameters():
            dist.broadcast(p.data, src=0)
        return self.module(*args)


def impostor(model: nn.Module) -> Engine:
    module = BroadcastAndAllReduce(model)
    return Engine(module, adamw(module))


class LateReduction(nn.Module):
    """Sends gradients to their owners only when backward is through: by then they have all been there at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module, self.optimizer = model, zero_1(OURS, model).optimizer

    def forward(self, *args):
        loss = self.module(*args)
        queue = torch.autograd.Variable._execution_engine.queue_callback
        loss.register_hook(lambda _: queue(self.optimizer.reduce_gradients))
        return loss


def late_zero_2(model: nn.Module) -> Engine:
    module = LateReduction(model)
    return Engine(module, module.optimizer)


def ddp(model: nn.Module, **changes) -> Engine:
    engine = data_parallel(TORCH, model, bucket_cap_mb=CAP_MB)
    return Engine(engine.module, engine.optimizer, **changes)


def stays_gathered(model: nn.Module) -> Engine:
    engine = fsdp2(TORCH, model)
    model.blocks[1].set_reshard_after_backward(False)
    return engine


def stays_gathered_after_forward(model: nn.Module) -> Engine:
    engine = fsdp2(TORCH, model)
    model.blocks[1].set_reshard_after_forward(False)
    return engine


def one_big_unit(model: nn.Module) -> Engine:
    fully_shard(model, reshard_after_forward=True)
    return Engine(model, adamw(model))


def keeps_the_original(model: nn.Module) -> Engine:
    original = [p.detach().clone() for p in model.parameters()]
    engine = fsdp2(TORCH, model)
    engine.original = original
    return engine


def never_sends(model: nn.Module) -> Engine:
    engine = ddp(model)
    engine.module.require_backward_grad_sync = False
    return engine


def average(model: nn.Module) -> None:
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


def sends_twice(model: nn.Module) -> Engine:
    def backward(loss):
        loss.backward()
        average(model)

    return ddp(model, backward=backward)


def sends_after_backward(model: nn.Module) -> Engine:
    def backward(loss):
        loss.backward()
        average(model)

    return Engine(model, adamw(model), backward=backward)


def no_sync_of_the_root_alone(model: nn.Module) -> Engine:
    """A trap of the real thing: the flag without its recursion."""
    engine = fsdp2(TORCH, model)

    @contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False, recurse=False)
        yield
        model.set_requires_gradient_sync(True, recurse=False)

    return Engine(model, engine.optimizer, no_sync)


IMPATIENT = {"hidden_share": 0}  # overlap is not asked for
TWINS = {  # the program, what it claims to be, and the one check that stops it
    "ZeRO-2": (partial(zero_2, OURS, bucket_cap_mb=CAP_MB), "SHARD_GRAD_OP", {}, "parameters_sharded"),
    "a unit stays gathered": (stays_gathered, "FULL_SHARD", {}, "parameters_sharded"),
    "ZeRO-1": (partial(zero_1, OURS), "ZERO_2", IMPATIENT, "gradients_sharded"),
    "all gradients at once": (late_zero_2, "ZERO_2", IMPATIENT | {"bucket_bytes": 50_000}, "gradients_sharded"),
    "DDP and AdamW": (ddp, "ZERO_1", {}, "optimizer_states_sharded"),
    "a unit stays after forward": (stays_gathered_after_forward, "FULL_SHARD", {}, "freed_after_use"),
    "one big unit": (one_big_unit, "FULL_SHARD", IMPATIENT | {"root_reshards": True}, "few_units_at_once"),
    "the original is kept": (keeps_the_original, "FULL_SHARD", {}, "nothing_else_held"),
    "nothing is sent": (never_sends, "DDP", IMPATIENT, "gradients_reduced"),
    "all is sent twice": (sends_twice, "DDP", IMPATIENT, "wire_bytes"),
    "sent after backward": (sends_after_backward, "DDP", {}, "overlap"),
    "no_sync does nothing": (partial(ddp, no_sync=nullcontext), "DDP", {}, "accumulates_locally"),
    "no_sync of the root": (no_sync_of_the_root_alone, "FULL_SHARD", {}, "accumulates_locally"),
}
POSING = {  # one strategy as another
    "ZeRO-1": (partial(zero_1, OURS), "ZERO_2", {"gradients_sharded", "overlap"}),
    "FSDP2, never resharded in forward": (
        partial(fsdp2, TORCH, reshard_after_forward=False),
        "FULL_SHARD",
        {"freed_after_use", "few_units_at_once"},
    ),
    "FSDP1, never resharded in forward": (
        partial(fsdp1, TORCH, strategy=ShardingStrategy.SHARD_GRAD_OP),
        "FULL_SHARD",
        {"freed_after_use", "few_units_at_once"},
    ),
}

# ------------------------------------------------------------------------------------------------------ on the ranks

CAPPED = {"DDP": data_parallel, "ZeRO-1": zero_1, "ZeRO-2": zero_2}
HONEST = {
    f"{library.name} {name}": (library, partial(CAPPED[name], bucket_cap_mb=CAP_MB) if name in CAPPED else entry.build)
    for name, entry in ENGINES.items()
    for library in (OURS, TORCH)
}
HONEST = {name: partial(make, library) for name, (library, make) in HONEST.items()}


def world_size_of(name: str) -> int:
    return 4 if ENGINES[name.split(" ", 1)[1]].replicas > 1 else 2


TWINS_BY_NIGHT = ("ZeRO-2", "all gradients at once", "no_sync does nothing")  # others need the same checks
HONEST_BY_DAY = [f"ours {name}" for name in ("DDP", "ZeRO-1", "ZeRO-2", "FSDP2 FULL_SHARD", "FSDP1 FULL_SHARD")]
HONEST_BY_DAY += [f"torch {name}" for name in ("FSDP2 FULL_SHARD", "FSDP1 FULL_SHARD")]
PROBED = {name: (world_size_of(name), make, name in HONEST_BY_DAY) for name, make in HONEST.items()}
PROBED |= {f"twin {name}": (2, make, name not in TWINS_BY_NIGHT) for name, (make, *_) in TWINS.items()}
PROBED |= {f"posing {name}": (4, make, False) for name, (make, *_) in POSING.items()}
PROBED |= {f"impostor of {n}": (n, impostor, n == 2) for n in (2, 4)}


def cases(names, prefix: str = "") -> list:
    return [pytest.param(n, marks=[] if PROBED[prefix + str(n)][2] else [pytest.mark.night]) for n in names]


def on_a_rank(makes: dict[str, Callable]) -> dict[str, Evidence]:
    """One after the other. What one leaves behind is frozen: it is looked for no more, or would count as the next's."""
    found = {}
    for name, make in makes.items():
        gc.collect()
        gc.freeze()
        found[name] = probe_one(make(build()))
    return found


def probe_one(engine: Engine) -> Evidence:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batch = text_batches.batch(0, 0, rank, world_size, global_batch=2 * world_size, seq_len=16)
    return probe(engine.module, engine.optimizer, lambda: engine.module(*batch), **engine.parts)


@cache
def probed_together(world_size: int, by_day: bool) -> dict[str, list[Evidence]]:
    makes = {name: make for name, (n, make, day) in PROBED.items() if (n, day) == (world_size, by_day)}
    ranks = launch(partial(on_a_rank, makes), world_size, device="cpu")
    return {name: [rank[name] for rank in ranks] for name in makes}


def probed(name: str) -> list[Evidence]:
    """What each rank says of it."""
    world_size, _, by_day = PROBED[name]
    return probed_together(world_size, by_day)[name]


@pytest.mark.parametrize("name", cases(HONEST))
def test_each_engine_passes_for_what_it_is(name):
    """And what it holds between steps, and sends, is what the formulas say, neither more nor less."""
    library, engine = name.split(" ", 1)
    entry, world_size = ENGINES[engine], world_size_of(name)
    strategy = entry.torch_strategy if library == "torch" and entry.torch_strategy else entry.strategy
    x = expected(
        strategy,
        world_size,
        shard_size=world_size // entry.replicas,
        param_dtype=entry.param_dtype,
        hidden_share=0 if strategy == "ZERO_1" else HIDDEN_SHARE,  # it reduces in `step`
    )
    for e in probed(name):
        assert failures(e, x) == {}
        assert e.held["between"]["parameters"] == x.parameters
        assert e.held["backward"]["gradients"] == x.gradients
        assert e.wire_bytes == pytest.approx(x.wire_bytes, rel=1e-3)
        if strategy != "DDP+ZERO_1":  # whole parameters don't divide evenly
            assert 0 <= x.optimizer_states - e.held["between"]["optimizer_states"] <= 4 * TENSORS


@pytest.mark.parametrize("name", cases(POSING, "posing "))
def test_one_strategy_does_not_pass_for_another(name):
    _, claim, stopped_by = POSING[name]
    for e in probed(f"posing {name}"):
        assert set(failures(e, expected(claim, 4))) == stopped_by


@pytest.mark.parametrize("n", cases((2, 4), "impostor of "))
def test_a_broadcast_and_an_all_reduce_are_no_sharding(n):
    """And a failure names the rank, the bytes and the moment."""
    for rank, e in enumerate(probed(f"impostor of {n}")):
        found = failures(e, expected("FULL_SHARD", n))
        assert set(found) == {"parameters_sharded", "gradients_sharded", "optimizer_states_sharded", "wire_bytes"}
        said = found["parameters_sharded"]
        mib = f"{PSI / 2**20:.2f} MiB of parameters after init, where at most {PSI / n / 2**20:.2f} MiB are due"
        assert said == f"rank {rank}: {mib} under FULL_SHARD over {n} ranks"


@pytest.mark.parametrize("name", cases(TWINS, "twin "))
def test_this_check_alone_stops(name):
    _, claim, options, check = TWINS[name]
    for e in probed(f"twin {name}"):
        assert set(failures(e, expected(claim, 2, **options))) == {check}


def test_no_check_is_there_for_nothing():
    """And each has a twin by day."""
    assert {check for name, (*_, check) in TWINS.items() if name not in TWINS_BY_NIGHT} == set(CHECKS)


def test_the_probe_takes_its_hooks_away():
    def hooks():
        engine = data_parallel(TORCH, build())
        probe_one(engine)
        return [len(p._backward_hooks or {}) for p in engine.module.parameters()]

    assert set(launch(hooks, 1, device="cpu")[0]) == {0}


def test_one_rank_alone_holds_all_and_sends_nothing():
    [found] = launch(lambda: probe_one(fsdp2(TORCH, build())), 1, device="cpu")
    assert failures(found, expected("FULL_SHARD", 1)) == {}
    assert found.wire_bytes == 0
