"""Each program raises its message on CPU ranks, with the installed torch, and the index finds it as the first cause."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deadlines import deadline_s

from shardwhy.first_cause import diagnose
from shardwhy.index import Entry, load
from shardwhy.logs import Log

ROOT = Path(__file__).parents[3]
ENTRIES = load()


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")[0].split(".")[:2]))


HERE = version(torch.__version__)
RAISED = [e for e in ENTRIES.values() if e.program and version(e.min_torch or "0.0") <= HERE]
BY_DAY = [next((e for e in RAISED if e.topic == topic), None) for topic in ("ddp", "fsdp", "launch")]


def output_of(entry: Entry) -> str:
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), str(ROOT)])}
    command = [sys.executable, str(entry.program_file)]
    done = subprocess.run(
        command, env=paths, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=deadline_s(90), check=False
    )
    return done.stdout.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e.id, marks=() if e in BY_DAY else pytest.mark.night) for e in RAISED]
)
def test_a_program_raises_its_message(entry):
    said = output_of(entry)
    assert any(entry.regex.search(line) for line in said.splitlines()), said
    found = diagnose([Log(said.encode())], ENTRIES.values())
    if entry.consequence:  # what it follows may be an error that no entry knows
        assert entry in [f.entry for f in (found.cause, *found.others)], said
    else:
        assert found.cause.entry == entry, said


def test_three_programs_run_by_day():
    assert all(BY_DAY)
