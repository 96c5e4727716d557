"""What one H100 measured is what the planner plans: PyTorch's peak to the percent, cuBLAS's workspaces included."""

import json
from pathlib import Path

import pytest

from shardbench.plan_one_gpu import setup_of_row
from shardplan.memory import memory_plan

RECORD = Path(__file__).parents[2] / "benchmarks/prove-gpu1-nvidia-h100-80gb-hbm3-torch2.11.json"
PARTS = {part["name"]: part for part in json.loads(RECORD.read_text())["parts"]}
ROWS = PARTS["whole gpu"]["figures"]["rows"]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['model']} {row['precision']} {row['recompute']}" for row in ROWS])
def test_planned_bytes_are_what_torch_counted(row):
    planned = memory_plan(setup_of_row(row, "dgx-h100")).max_memory_allocated
    assert planned == pytest.approx(row["measured_bytes"], rel=0.01)
