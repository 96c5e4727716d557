"""The README's table of what runs only on GPUs is complete, and what it says about the stand-in GPU is so."""

import re

import gpu_lines
from on_gpus import lines_run, on_gpus

PROGRAMS = ["fsdp, host optimizer", "fsdp, file optimizer"]
README = (gpu_lines.ROOT / "lib" / "README.md").read_text()
ROWS = dict(re.findall(r"^\| `((?:shard|grading)\S+\.py(?: \S+)?)` \| (.+) \|$", README, re.MULTILINE))


def test_the_table_lists_every_place_that_asks_for_a_gpu():
    assert sorted(ROWS) == sorted(gpu_lines.places())


def test_the_tests_that_it_names_exist():
    named = {name for said in ROWS.values() for name in re.findall(r"`(test_\w+\.py)`", said)}
    known = {path.name for path in gpu_lines.ROOT.glob("*/tests/**/test_*.py")}
    assert named and named <= known


def test_the_stand_in_gpu_runs_the_statements_that_it_names():
    said = {place: re.findall(r"^stand-in: `(.+)`$", text) for place, text in ROWS.items()}
    wanted = [gpu_lines.line_of(place, statement) for place, found in said.items() for statement in found]
    assert len(wanted) >= 6
    assert sorted(on_gpus(lines_run, 2, PROGRAMS, wanted)[0]) == sorted(wanted)
