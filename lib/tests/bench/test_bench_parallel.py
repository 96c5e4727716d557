"""The benchmark of the sharding engines runs, says what it promises, and what is exact in it is exact."""

import json

import pytest

from shardbench import parallel, parallel_table
from shardbench.deepspeed_engine import installed
from shardbench.engines import ENGINES
from shardlab.model import preset

pytestmark = pytest.mark.night  # what people measure once is tried once a night

SMALL = {"model": "1M", "pairs": 2, "micro_batch": 1, "seq_len": 16}
PSI = 4 * preset("1M").n_params
ENGINES_BY_DAY = ("ZeRO-2",)  # whose torch's strategy is another one; test_sharding_evidence has all
STATES = ("parameters", "gradients", "optimizer_states")


@pytest.fixture(scope="module")
def result() -> dict:
    return parallel.run(engines=ENGINES_BY_DAY, stages=(), world_size=2, **SMALL)


def rows(result: dict) -> dict[str, dict]:
    return {row["engine"]: row for row in result["rows"]}


def test_it_says_what_it_promises(result, capsys):
    assert json.loads(json.dumps(result)) == result
    assert list(rows(result)) == list(ENGINES_BY_DAY)
    for row in result["rows"]:
        t = row["time"]
        assert 0 < t["low"] <= t["ratio"] <= t["high"]
        assert t["pairs"] == SMALL["pairs"]
    for t in result["backend"].values():
        assert 0 < t["low"] <= t["ratio"] <= t["high"]
    parallel.show(result)
    shown = capsys.readouterr().out
    assert all(name in shown for name in rows(result))


def test_every_engine_keeps_its_promises(result):
    for row in result["rows"]:
        assert row["ours"]["broken"] == row["theirs"]["broken"] == []


def test_losses_are_equal(result):
    """Two ranks: to the bit, whatever the order of the sums."""
    for row in result["rows"]:
        assert row["max_loss_difference"] == 0.0
        assert row["losses"][-1] < row["losses"][0]


def test_what_is_held_and_sent_is_the_formulas(result):
    for row in result["rows"]:
        ours, formula = row["ours"], row["formula"]["ours"]
        for name in ("parameters", "gradients"):
            assert ours["held"][name] == formula[name]
        assert ours["held"]["optimizer_states"] == pytest.approx(formula["optimizer_states"], rel=1e-3)
        assert ours["wire_bytes"] == pytest.approx(formula["wire_bytes"], rel=1e-3)
        assert max(ours["held"].values()) < ours["peak_of_states"] <= min(ours["peak_bytes"], formula["peak_of_states"])


def test_two_ranks_halve_what_is_sharded(result):
    held = {name: [row["ours"]["held"][state] for state in STATES[:2]] for name, row in rows(result).items()}
    assert held == {"ZeRO-2": [PSI, PSI / 2]}


def test_hybrid_engines_are_left_out_where_ranks_do_not_pair_up():
    result = parallel.run(engines=("HSDP",), stages=(), world_size=1, **SMALL)
    assert result["rows"] == []


def test_a_missing_deepspeed_is_said(result, monkeypatch, capsys):
    monkeypatch.setattr(parallel, "installed", lambda: False)
    found = parallel.run(engines=(), world_size=2, **SMALL)
    assert found["deepspeed"] is None
    parallel.show(result | found)
    shown = capsys.readouterr().out
    assert "DeepSpeed: not installed" in shown and parallel_table.REMEDY in shown


@pytest.mark.night
def test_the_whole_of_it():
    """Every engine on four ranks, and DeepSpeed where there is one."""
    result = parallel.run(world_size=4, **SMALL)
    assert list(rows(result)) == list(ENGINES)
    held = {name: [row["ours"]["held"][state] for state in STATES[:2]] for name, row in rows(result).items()}
    assert held["ZeRO-1"] == [PSI, PSI]
    assert held["ZeRO-2"] == [PSI, PSI / 4]
    assert held["FSDP2 FULL_SHARD"] == [PSI / 4, PSI / 4]
    for row in result["rows"]:
        assert row["ours"]["broken"] == row["theirs"]["broken"] == []
        assert row["max_loss_difference"] < 1e-3
    assert (result["deepspeed"] is not None) == installed()
    for row in result["deepspeed"] or []:
        assert row["max_loss_difference"] < 1e-3
