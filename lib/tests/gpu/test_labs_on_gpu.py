"""Labs' solutions in the grader's drills on stand-in GPUs: the same numbers as on CPUs, and no race.

Labs 2 and 3: the others' drills need the sizes of a tier, or take no engine of the student's.
"""

import os
from unittest.mock import patch

import pytest
import torch
from on_gpus import on_gpus

from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.samples.sample import read_lab
from grading.samples.trial import run_cells
from shardlab import launch

DRILLS = {
    "lab2_ddp": ("TokenDDP", "gradients", (1, 0.25)),
    "lab3_zero": ("Zero2", "train", (1, 0.01, [4, 2], "AdamW", 1.0, [(2, 1.0), (1, 4.0), (2, 1.0)])),
}


def _drill(lab: str, name: str, implementation, args: tuple, on_gpu: bool):
    import importlib

    on_ranks = importlib.import_module(f"grading.checks.{lab}.on_ranks")
    if tie := getattr(on_ranks, "build", None):  # `to` unties weights on a stand-in GPU, as on an XLA device
        on_ranks.build = lambda *args, tied=False, **options: tie(*args, **options)
    if not on_gpu:
        return getattr(on_ranks, name)(implementation, *args), []
    import stand_in_gpu

    on_ranks.local_device = lambda: torch.device("gpu", 0)
    implementation.__init__.__globals__["local_device"] = on_ranks.local_device
    result = getattr(on_ranks, name)(implementation, *args)
    return result, list(map(str, stand_in_gpu.gpu.sanitizer.reports))


def _numbers(tree) -> list[float]:
    if isinstance(tree, dict):
        return [x for key in sorted(tree) if key != "bits" for x in _numbers(tree[key])]
    return [x for branch in tree for x in _numbers(branch)] if isinstance(tree, (list, tuple)) else [float(tree)]


@pytest.mark.night
@pytest.mark.parametrize("lab", DRILLS)
def test_a_solution_trains_on_gpus_as_on_cpus(lab, tmp_path):
    answer, drill, args = DRILLS[lab]
    with patch.dict(os.environ, {ANSWERS: str(tmp_path)}):
        implementation = run_cells(read_lab("solutions", lab))[answer]
    on_cpus = launch(_drill, 2, lab, drill, implementation, args, False, device="cpu", stream=False)
    for (result, reports), (expected, _) in zip(
        on_gpus(_drill, 2, lab, drill, implementation, args, True), on_cpus, strict=True
    ):
        assert not reports
        assert _numbers(result) == pytest.approx(_numbers(expected), rel=1e-3, abs=1e-6)
