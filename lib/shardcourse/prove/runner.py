"""Run the parts of a proof one after another, each in a process of its own, and go on where the last run was stopped.

    folder/
        engines.json    {"key", "held", "complaints", "seconds", "figures"}, written when the part has ended
        engines.log     what it printed

A part is not run again if `key`, the digest of the sources, torch and the cards, is what it was. What was killed has no
file, and runs again.
"""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from shardcourse.prove.parts import Part, complaints
from shardcourse.repository import ROOT

SOURCES = ("lib/shard*/**/*.py", "grading/**/*.py", "course/*.ipynb", "solutions/**/*.ipynb", "labs/**/*.ipynb")
LAST_LINES = 12  # of a log, in the words of a part that crashed
Command = Callable[[Part, Path], list[str]]  # the command that measures a part and writes its figures to a file


def source_key() -> str:
    """Return a digest of all that decides how a part runs: our sources, torch's version, and the cards."""
    found = hashlib.sha256(torch.__version__.encode())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found.update(torch.cuda.get_device_name(index).encode())
    for file in sorted({file for pattern in SOURCES for file in ROOT.glob(pattern)}):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def run_parts(
    wanted: Iterable[Part], folder: Path, command: Command, key: str, tell: Callable[[Part, dict], object]
) -> dict[str, dict]:
    """Return the outcome of each part by name; those that ran before with the same key are read from `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for part in wanted:
        file = folder / f"{part.name.replace(':', '-').replace(' ', '-')}.json"
        outcome = _read(file, key)
        if outcome is None:
            outcome = {"key": key, **_run(part, file, command)}
            _write(file, outcome)
        outcomes[part.name] = outcome
        tell(part, outcome)
    return outcomes


def _read(file: Path, key: str) -> dict | None:
    if not file.exists():
        return None
    outcome = json.loads(file.read_text())
    return outcome if outcome["key"] == key else None


def _write(file: Path, outcome: dict) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(outcome, indent=1) + "\n")
    os.replace(new, file)


def _run(part: Part, file: Path, command: Command) -> dict:
    figures_file, log = file.with_suffix(".figures"), file.with_suffix(".log")
    figures_file.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command(part, figures_file), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        words = _wait(process, part.limit_s)
    seconds = round(time.monotonic() - began, 1)
    figures = json.loads(figures_file.read_text()) if figures_file.exists() and not words else None
    figures_file.unlink(missing_ok=True)
    if figures is None:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        found = [f"{words or f'ended with exit status {process.returncode} and no figures'}; it said last:\n{last}"]
    else:
        found = complaints(part.name, figures)
    return {"held": not found, "complaints": found, "seconds": seconds, "figures": figures}


def _wait(process: subprocess.Popen, limit_s: float) -> str:
    """Wait for a part. Whatever ends the wait, end the part with everything that it started."""
    try:
        process.wait(limit_s)
        return "" if process.returncode == 0 else f"ended with exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        return f"did not end within {limit_s:g} s"
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):  # some have process groups of their own
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
