"""Each of the clinic's patients holds too much of one thing, and its cure takes that away without touching the loss."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardcourse.leaky_programs import PATIENTS, healthy
from shardlab import launch, text_batches
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import preset

PSI, SHARE = 4 * preset("1M").n_params, preset("1M").n_params  # of 4 ranks


def account(make, cured: bool) -> dict:
    p = make(cured)
    sizes = {"micro_batch": 1, "seq_len": 16} | p.sizes
    rank, n = dist.get_rank(), dist.get_world_size()
    inputs = text_batches.batch(0, 0, rank, n, global_batch=n * sizes["micro_batch"], seq_len=sizes["seq_len"])
    losses = []
    for _ in range(2):
        with MemoryTracker(p.model, p.optimizer) as memory, record_traffic() as traffic:
            held = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.is_floating_point()]
            memory.label("other", *held)
            del held
            losses.append(p.train(p.model, *inputs).item())
            p.optimizer.step()
            p.optimizer.zero_grad()
    peak = memory.peak
    return peak.by_category() | {
        "peak": peak.peak_bytes,
        "sharded": all(isinstance(q, DTensor) for q in p.optimizer.param_groups[0]["params"]),
        "kinds": dict(traffic.kinds()),
        "losses": losses,
    }


def all_accounts() -> dict:
    gc.freeze()
    found = {}
    for name, make in PATIENTS.items():
        for cured in (False, True):
            found[name, cured] = account(make, cured)
            gc.collect()
    return found | {("healthy", False): account(healthy, False)}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.night)], ids="{} ranks".format)
def accounts(request) -> dict:
    found = launch(all_accounts, request.param, device="cpu", stream=False)[0]
    return found | {"ranks": request.param}


@pytest.mark.parametrize("name", PATIENTS)
def test_the_cure_takes_a_tenth_of_the_peak_at_least(accounts, name):
    """Of 4 ranks, as in the lesson. Of 2, D's cure takes less: it shards gradients."""
    least = 0.07 if name == "D" and accounts["ranks"] == 2 else 0.1
    assert accounts[name, True]["peak"] < (1 - least) * accounts[name, False]["peak"]


@pytest.mark.parametrize("name", PATIENTS)
def test_only_the_early_optimizer_shows_in_the_loss(accounts, name):
    sick, cured = (accounts[name, yes]["losses"] for yes in (False, True))
    assert sick[0] == pytest.approx(cured[0], rel=1e-5)
    assert (sick[1] == pytest.approx(cured[1], rel=1e-4)) == (name != "A")
    assert (sick[1] == sick[0]) == (name == "A")


def test_what_gives_each_away(accounts):
    sick = {name: accounts[name, False] for name in ("healthy", *PATIENTS)}
    assert sick["A"]["optimizer_states"] >= PSI and not sick["A"]["sharded"]
    assert all(sick[name]["sharded"] for name in sick if name != "A")
    assert sick["C"]["unsharded"] + sick["C"]["buckets"] == 2 * PSI and sick["C"]["kinds"]["all_gather"] == 1
    assert sick["D"]["unsharded"] > PSI and sick["D"]["kinds"] == {"all_gather": 36, "reduce_scatter": 5}
    assert sick["E"]["other"] >= PSI > sick["healthy"]["other"]
    for name in "BF":
        assert sick[name]["activations"] > 0.3 * sick[name]["peak"]
    logits = 4 * 2 * 128 * 4096
    assert sick["B"]["temporaries"] >= 2 * logits > accounts["B", True]["temporaries"]


def test_a_cured_one_is_as_healthy(accounts):
    well = accounts["healthy", False]
    for name in "ACE":
        found = accounts[name, True]
        assert {k: found[k] for k in ("peak", "kinds", "losses")} == {k: well[k] for k in ("peak", "kinds", "losses")}
