"""Plans tried on ranks: bytes agree, a step takes as long as planned, and a wrong plan is seen to be wrong."""

from dataclasses import replace

import pytest

from shardcourse.experiments import planned_on_ranks
from shardcourse.experiments.planned_on_ranks import NARROWER, SMALL, STAND_IN, peaks, planned_peaks, that_run_here
from shardplan.api import figures_of, setup_of

PLAIN = {"precision": "fp32", "optimizer_kernel": "forloop", "seq_len": 64}


def test_the_stand_in_is_a_1024th_of_the_model():
    real = setup_of("1B", "A10G x 1, 25 Gb/s", 4).shape
    assert STAND_IN.tied == real.tied
    assert STAND_IN.n_params * NARROWER**2 == pytest.approx(real.n_params, rel=0.01)


def test_planned_peaks_are_those_of_the_ranks():
    setups = {s: setup_of(SMALL, "dgx-h100", 2, sharding=s, **PLAIN) for s in ("DDP", "FULL_SHARD")}
    planned, measured = planned_peaks(setups, "cpu"), peaks(setups, "cpu")
    for name in setups:
        assert measured[name].peak_bytes == pytest.approx(planned[name].n_bytes, rel=0.002)
    assert planned["FULL_SHARD"].n_bytes < 0.9 * planned["DDP"].n_bytes


def test_fewer_bits_are_left_out_where_they_cannot_run(monkeypatch):
    ways = {"plain": {}, "8 bits": {"optimizer": "adamw-8bit"}, "QLoRA": {"lora_rank": 4, "base_4bit": True}}
    setups = {name: setup_of(SMALL, "dgx-h100", 2, **PLAIN, **way) for name, way in ways.items()}
    monkeypatch.setattr(planned_on_ranks, "find_spec", lambda name: name)
    monkeypatch.setattr(planned_on_ranks.torch, "__version__", "2.11.0+cpu")
    assert list(that_run_here(setups)) == ["plain", "8 bits"]
    monkeypatch.setattr(planned_on_ranks.torch, "__version__", "2.13.0+cpu")
    assert list(that_run_here(setups)) == list(ways)
    monkeypatch.setattr(planned_on_ranks, "find_spec", lambda name: None)
    assert list(that_run_here(setups)) == ["plain"]


@pytest.mark.alone
def test_a_step_takes_as_long_as_planned():
    """Also a plan that is told to compute nothing: its messages alone take longer than half of the step."""
    plan = figures_of(setup_of("1B", "A10G x 1, 25 Gb/s", 4, sharding="SHARD_GRAD_OP", precision="bf16-master"))
    idle = replace(plan, speed=replace(plan.speed, parts_s={"computation": 0.0, "optimizer": 0.0}))
    found = planned_on_ranks.time_steps({"planned": plan, "computes nothing": idle})
    assert found["planned"] == pytest.approx(plan.speed.step_s, rel=0.15)
    assert 0.5 * plan.speed.step_s < found["computes nothing"] < 0.95 * found["planned"]
