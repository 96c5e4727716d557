"""A judge computes in the grader's own process, on the CPU: the GPUs that were leased belong to the ranks."""

import math
from types import SimpleNamespace

import pytest
import torch

from grading.checks.lab5_precision_recompute import judge_matches_fp32
from shardlab.tier import TIERS


def test_lab_5_finds_the_likely_rounding_on_the_cpu(monkeypatch):
    """As on a machine with GPUs: there `local_device` opens one."""
    session = SimpleNamespace(seed=3, tier=TIERS["cpu"])
    expected = judge_matches_fp32._rounded(session, 0, positions=True, rates=True)
    monkeypatch.setenv("SHARDLAB_DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("the judge opens a GPU"))
    assert torch.equal(judge_matches_fp32._rounded(session, 0, positions=True, rates=True), expected)
    assert math.isfinite(float(expected.sum()))
