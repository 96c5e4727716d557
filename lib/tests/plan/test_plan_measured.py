"""The closed form is what real ranks hold: the peak, its categories, and the fullest moment of each part of a step.

What can't be equal to the byte: a tracker sees scalars (losses, counts) that no term has, and under ZeRO-2 the plan has
one tensor too many while a gradient moves into its bucket.
"""

import pytest

from shardbench import plan_measured
from shardbench.plan_measured import GOAL, configurations, run, setup_of
from shardlab import launch
from shardplan.memory import memory_plan
from shardplan.trace import step_parts

OURS_DIFFER = {"SHARD_GRAD_OP"}  # see Gathering: the plan is for torch's, and ours holds less


def is_ours_that_differs(c: dict) -> bool:
    return c["library"] == "ours" and c["strategy"].get("sharding") in OURS_DIFFER


def check(row: dict) -> None:
    assert row["ratio"] == pytest.approx(1, abs=GOAL), row
    if row["library"] == "torch":  # ZeRO-2 has two moments that are almost equal
        predicted, measured = by_use(row["predicted"]), by_use(row["measured"])
        for use, n_bytes in predicted.items():
            assert n_bytes == pytest.approx(measured[use], abs=GOAL * row["measured_bytes"]), (use, row)


def by_use(held: dict) -> dict:
    """What stays, each for itself; and together what comes and goes: of a copy or a gradient that waits, a tracker does
    not always learn whether it is a bucket, an unsharded gradient or a mere temporary."""
    stay = {name: held[name] for name in ("parameters", "optimizer_states", "activations")}
    return stay | {"for a while": sum(held.values()) - sum(stay.values())}


def test_there_are_at_least_40_configurations_that_differ():
    wanted = configurations()
    assert len({str(c) for c in wanted}) == len(wanted) >= 40


def test_every_kind_of_peak_occurs():
    """In the forward and backward of every part, while gradients are reduced, in the optimizer."""
    peaks = {memory_plan(setup_of(c), on_gpu=False).peak.name.split(" block")[0] for c in configurations()}
    assert {"forward of the output layer", "backward of the output layer", "backward of", "optimizer"} <= peaks
    assert {"backward of the embedding", "all_gather of"} & peaks


QUICK = (  # model, ranks, library, strategy: one of each kind; the night has all configurations
    ("1M", 2, "torch", {"sharding": "SHARD_GRAD_OP"}),
    ("1M", 2, "ours", {"sharding": "ZERO_1", "bucket_cap_mb": 0.5}),
    ("1M", 2, "ours", {"sharding": "ZERO_2", "bucket_cap_mb": 0.5}),
    ("tiny", 2, "torch", {"precision": "bf16-autocast", "micro_batch": 1, "recompute": "full"}),
    ("1M", 2, "torch", {"recompute": "full", "recompute_every": 2}),
    ("1M", 2, "torch", {"sharding": "DDP", "gradient_as_bucket_view": True, "accumulation": 2}),
    ("tied vocabulary", 2, "torch", {"sharding": "DDP"}),
    ("tiny", 2, "torch", {"wrap": "whole", "accumulation": 2, "accumulate_unsharded": True}),
    ("uneven", 2, "torch", {"seq_len": 37}),
)


def test_peaks_within_the_goal_on_a_sample():
    for row in run([plan_measured._one(m, n, library, **s) for m, n, library, s in QUICK]):
        check(row)


@pytest.mark.night
def test_peaks_within_the_goal_on_all():
    for row in run():
        if is_ours_that_differs(row):
            assert 1 <= row["ratio"] < 1.05  # no less than ours holds
        else:
            check(row)


CLOSE = 0.003  # the most that is seen is 0.001: cos and sin, counted a little longer than they are there
MOMENTS = (
    ("tied vocabulary", {"sharding": "DDP", "seq_len": 2}),
    ("1M", {"sharding": "SHARD_GRAD_OP", "recompute": "full"}),
    ("tiny", {"precision": "bf16-mixed", "accumulation": 2, "accumulate_unsharded": True}),
    ("1M", {"sharding": "DDP", "gradient_as_bucket_view": True, "recompute": "products"}),
    ("1M", {"sharding": "ZERO_1", "bucket_cap_mb": 0.5}),
)


def test_each_part_of_a_step_is_as_full_as_planned():
    """Not the peak alone: over time within the step."""
    setups = [setup_of(plan_measured._one(model, 2, **strategy)) for model, strategy in MOMENTS]

    def measure() -> list[dict[str, int]]:
        return [
            [(name, sum(k.n_bytes * n for k, n in live.items())) for name, live in step_parts(s, "cpu")] for s in setups
        ]

    for setup, *ranks in zip(setups, *launch(measure, 2), strict=True):
        planned = fullest((m.part, m.n_bytes) for m in memory_plan(setup, on_gpu=False).moments)
        measured = fullest((name.split(": ")[-1], n_bytes) for rank in ranks for name, n_bytes in rank)
        assert len(planned) == 2 * setup.shape.n_layers + 5
        for part, n_bytes in planned.items():
            assert n_bytes == pytest.approx(measured[part], rel=CLOSE), (setup.strategy, part)


def fullest(moments) -> dict[str, float]:
    """Of the moments of a part, in all micro-batches; a name may say which of them it is: "1: forward of block 3"."""
    parts: dict[str, float] = {}
    for part, n_bytes in moments:
        parts[part] = max(parts.get(part, 0.0), n_bytes)
    return parts
