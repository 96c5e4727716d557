"""The slow job of lesson 12: predicted, it gains by gathering early; run, its exposed gathers go as predicted."""

import pytest

from shardcourse.experiments import slow_fsdp_job as job


def test_arithmetic_says_what_early_gathers_gain():
    late, backward = job.predict(), job.predict(early_in_backward=True)
    both = job.predict(early_in_backward=True, early_in_forward=True)
    gather_s = max(s.duration_s for s in late.lane("link") if s.name == "all_gather")
    assert late.end_s - backward.end_s >= (job.BLOCKS - 1) * gather_s
    assert both.end_s < backward.end_s < late.end_s
    assert job.predict(compute=0.5).compute_s == pytest.approx(late.compute_s / 2)
    assert job.predict(compute=0.5).exposed_s >= late.exposed_s


def asked_early(step):
    """How many gathers this rank asked for before the computing in front of their own had ended."""
    passes = [s for s in step.lane("compute") if s.name in ("forward", "backward")]
    slept = [s for s in passes if s.duration_s > job.FORWARD_S / 2]  # not those of the root, and not their ends
    found = 0
    for gather in step.lane("link"):
        if gather.name == "all_gather" and gather.unit.startswith("blocks."):
            own = next(i for i, s in enumerate(slept) if s.unit == gather.unit and s.end_s > gather.end_s)
            found += own > 0 and gather.issued_s < slept[own - 1].end_s
    return found


@pytest.mark.night
def test_gathers_are_late_until_they_are_repaired():
    steps = [
        job.run()[1],
        job.run(early_in_backward=True)[1],
        job.run(early_in_backward=True, early_in_forward=True)[1],
    ]
    for step in steps:
        assert [s.name for s in step.lane("link")].count("all_gather") == 2 * job.BLOCKS + 1
    blocks = job.BLOCKS - 1  # without the first one, which has nothing in front of it
    assert [asked_early(step) for step in steps] == [0, blocks, 2 * blocks]
