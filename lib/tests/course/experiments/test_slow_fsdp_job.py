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


@pytest.mark.alone
def test_gathers_are_exposed_until_they_are_early():
    _, late = job.run()
    _, early = job.run(early_in_backward=True, early_in_forward=True)
    assert [s.name for s in late.lane("link")].count("all_gather") == 2 * job.BLOCKS + 1
    assert late.exposed_of("all_gather") > 0.9 * late.time_of("all_gather")
    assert early.exposed_of("all_gather") < 0.5 * early.time_of("all_gather")
