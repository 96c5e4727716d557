"""Slow links and drives change no result, and take as long as their speed says."""

from functools import partial

import pytest
import torch

from shardcourse.experiments.slow_links import Line, OnSlowDrive, OnSlowHost, SleptTraining
from shardlab.model import preset

CONFIG = preset("1M", n_layers=1)


def test_a_line_carries_one_thing_after_the_other():
    line = Line()
    first, second = line.book(5.0, "read"), line.book(3.0, "write")
    assert second == pytest.approx(first + 3.0)
    assert [span.name for span in line.log] == ["read", "write"]


@pytest.mark.parametrize(
    ("slow", "rates"),
    [(OnSlowHost, {"link_s": 1e-8, "update_s": 1e-8}), (OnSlowDrive, {"read_s": 1e-8, "write_s": 1e-8})],
)
def test_a_slow_step_has_the_same_result_and_takes_at_least_its_bytes(slow, rates, tmp_path):
    options = {"folder": tmp_path, "buffer_bytes": 1 << 20} if slow is OnSlowDrive else {}
    plain = SleptTraining(CONFIG, partial(torch.optim.AdamW, lr=0.01))
    delayed = SleptTraining(CONFIG, partial(slow, optimizer_class=torch.optim.AdamW, lr=0.01, **options))
    delayed.optimizer.use(**rates)
    assert plain.seconds({1: 0.0}, repeats=1).keys() == {1}
    n_bytes = 16 if slow is OnSlowDrive else 5  # 8 read and 8 written; at least the updates and one way over the link
    assert delayed.seconds({1: 0.0}, repeats=1)[1] > n_bytes * CONFIG.n_params * 1e-8
    for p, q in zip(plain.model.parameters(), delayed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    if slow is OnSlowDrive:
        names = {span.name for span in delayed.optimizer.timeline().spans}
        assert names == {"read", "write", "optimizer"}


def test_computing_is_slept():
    training = SleptTraining(CONFIG, torch.optim.AdamW)
    assert training.seconds({8: 0.3}, repeats=1)[8] > 0.3
