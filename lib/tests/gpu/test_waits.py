"""Each wait of the engines, left out, is reported: so a wait that is there is needed, and the sanitizer sees its
absence."""

import gpu_programs
import pytest
import waits
from on_gpus import on_gpus, train

WAITS = waits.found()
# Programs that are tried first. A wait in another file is tried with all.
FIRST = {
    "ddp.py": ["ddp", "ddp, backward breaks off"],
    "fsdp/api.py": ["fsdp, unshard by hand"],
    "fsdp/schedule.py": ["fsdp"],
    "fsdp/unit.py": ["fsdp", "fsdp, replicas"],
    "cpu_offload_optimizer.py": ["fsdp, host optimizer"]
    + ["fsdp, host optimizer, many backwards", "fsdp, host optimizer, clipping"],
    "rate_limiter.py": ["fsdp"],
    "point_to_point_collectives.py": ["ring"],
    "zero/bucket_layout.py": ["zero1"],
    "zero/stage1.py": ["zero1"],
}


def test_finds_all_waits():
    assert {wait.file for wait in WAITS} >= FIRST.keys()
    assert len({(wait.file, wait.line, wait.column) for wait in WAITS}) == len(WAITS) >= 20


@pytest.mark.night
@pytest.mark.parametrize("wait", WAITS, ids=str)
def test_a_wait_left_out_is_reported(wait):
    first = FIRST.get(wait.file, [])
    names = [*first, *(name for name in gpu_programs.PROGRAMS if name not in first)]
    by_rank = on_gpus(train, 2, names, True, wait)
    assert any(reports for found in by_rank for _, reports in found.values()), f"no program needs {wait}"
