"""An `nvidia-smi` that says what a test tells it to."""

import os
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """Put an `nvidia-smi` first on PATH. It prints the answer to the first key that its arguments contain; else it
    fails, as it does for an unknown field."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = ""
    for number, (key, answer) in enumerate(answers.items()):
        (folder / f"answer-{number}").write_text(answer)
        cases += f'  *"{key}"*) cat "{folder}/answer-{number}" ;;\n'
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}  *) echo "not a valid field" >&2; exit 2 ;;\nesac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
