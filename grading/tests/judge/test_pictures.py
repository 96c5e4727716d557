"""Figures in verdicts: there is one for what can be drawn, and none, and no error, for whatever else ranks reply."""

import base64

import pytest
import torch
from torch import nn

from grading.judge.verdict_pictures import MOMENTS, moments, of_laps, of_memory
from shardlab.measure.memory import MemoryTracker

STEP = [{"parameters": 100.0}, {"parameters": 100.0, "gradients": 50.0}]


def is_png(picture: str) -> bool:
    return base64.b64decode(picture).startswith(b"\x89PNG")


def test_memory_and_laps_are_drawn():
    assert is_png(of_memory({"yours": STEP, "ours": STEP[:1]}, 120))
    assert is_png(of_laps({"yours": (0.1, 0.2), "ours": (0.1, 0.1)}))


def test_moments_are_few_and_the_peak_is_among_them():
    layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(200)))
    with MemoryTracker(layers) as tracker:
        layers(torch.ones(4, 16)).sum().backward()
    kept = moments(tracker)
    assert len(tracker.timeline()) > MOMENTS >= len(kept) > 1
    assert max(sum(held.values()) for held in kept) == tracker.peak.peak_bytes


@pytest.mark.parametrize(
    "step",
    [
        [],
        None,
        "parameters",
        [1, 2],
        [{"parameters": "many"}],
        [{"parameters": -1}],
        [{"parameters": float("nan")}],
        [{"parameters": 1e300}],
        {"parameters": 1},
    ],
)
def test_nothing_is_drawn_of_what_is_no_account(step):
    assert of_memory({"yours": step, "ours": STEP}, 120) == ""


def test_no_laps_no_picture():
    assert of_laps({"yours": (), "ours": ()}) == ""
