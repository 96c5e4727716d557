"""The decision matrix: what fits by the planner is what fits by counting bytes, and the best plan is no slower."""

import pytest
from rich.console import Console

from shardbench import plan_matrix
from shardcourse.claims.exercises import exercises, exercises_table
from shardplan.search.decision_matrix import SCENARIOS, Row, best_plan, in_words, matrix, pages_plan

# Billions of parameters times the least bytes a GPU: 16 whole, 16/N sharded; with SHARD_GRAD_OP (4+8)/N and the whole
# bf16 weights, gradients following as those go; QLoRA's 4-bit weights. What fits by this has room for a sequence, too.
BY_HAND_GB = {
    "7B": 6.74 * 16,
    "13B": 13.02 * (12 / 8 + 2),
    "70B": 70.55 * 16 / 8,
    "70B on 64": 70.55 * 16 / 8,
    "405B": 405.85 * 16 / 1024,
    "QLoRA": 6.74 * 0.52,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_fits_is_what_fits_by_counting_bytes(name):
    plan = pages_plan(name)
    there = plan.setup.machine.memory_bytes / 1e9
    assert plan.fits == ("yes" if BY_HAND_GB[name] < 0.8 * there else "no")
    assert plan.memory.allocated_bytes / 1e9 > BY_HAND_GB[name]


def test_the_pages_are_right_about_half_of_it():
    assert {name: pages_plan(name).fits for name in SCENARIOS} == {
        "7B": "no",
        "13B": "yes",
        "70B": "no",
        "70B on 64": "no",
        "405B": "yes",
        "QLoRA": "yes",
    }


@pytest.mark.night
def test_the_best_plan_fits_and_is_no_slower():
    row = Row(SCENARIOS["QLoRA"], pages_plan("QLoRA"), best_plan("QLoRA"))
    assert row.best.fits == "yes" and row.gain >= 1
    assert row.best.setup.strategy.lora_rank == 16 and row.best.setup.world_size == 1


@pytest.mark.night
def test_every_scenario_has_a_plan_that_fits():
    rows = matrix()
    assert [row.scenario.name for row in rows] == list(SCENARIOS)
    assert all(row.best and row.best.fits == "yes" for row in rows)
    assert all(row.gain >= 1 for row in rows if row.gain)
    assert rows[2].best.setup.strategy.offload != "none", "70B does not fit 8 GPUs without it"
    assert rows[3].best.setup.strategy.offload == "none"


def test_the_table_reads(capsys):
    plan_matrix.show([plan_matrix._row(Row(SCENARIOS["7B"], pages_plan("7B"), None))])
    printed = capsys.readouterr().out
    assert "DDP or NO_SHARD" in printed and "nothing" in printed


def test_choices_in_words():
    assert in_words(pages_plan("70B on 64").setup) == "sharding='FULL_SHARD', shard_size=8, recompute='full'"
    assert "sharding" not in in_words(pages_plan("QLoRA").setup)


def test_the_exercises_have_answers(capsys):
    found = {e.question[:3]: e for e in exercises()}
    memory = next(e for e in found.values() if "13B" in e.question).found
    assert memory["states, GB"] == {"DDP": pytest.approx(208, rel=0.01), "FULL_SHARD": pytest.approx(26, rel=0.01)}
    volume = next(e for e in exercises() if "70B, FULL" in e.question).found
    by_hand = 7 / 8 * 70.55 * (2 + 2 + 4)  # less the root's second gather
    assert volume["FULL_SHARD, GB"]["bf16-mixed"] == pytest.approx(by_hand, rel=0.02)
    assert list(volume["times DDP's bytes"].values()) == pytest.approx([1, 1.5], rel=0.02)  # fp32 gradients, bf16 ones
    Console(width=80).print(exercises_table(exercises()))
    assert "DeepSpeed" in capsys.readouterr().out
