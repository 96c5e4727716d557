"""Collect the grader's benchmarks in one record. Parts that are not measured again stay as they are in the file."""

import json
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grading.bench import attacks, false_fails, grading_by_slurm, judge_samples, kills, large_class
from grading.boxes.sandbox import best_box
from grading.gradebook.nbgrader_classroom import ROOT
from grading.gradebook.result_cache import write_whole
from shardbench import environment


def _simulated() -> dict:
    rows = [false_fails.simulated(20_000, slowness) for slowness in (0.8, 1.0, 1.25)]
    return {"false fail": false_fails.FALSE_FAIL, "false pass": false_fails.FALSE_PASS, "rows": rows}


LABS = sorted(p.name for p in (ROOT / "solutions").glob("lab*"))
PARTS = {
    "simulated": _simulated,
    "quiet": lambda: false_fails.measured(50, 0),
    "loaded": lambda: false_fails.measured(50, psutil.cpu_count()),
    "kills": lambda: kills.run(50),
    "overhead": lambda: large_class.overhead(5),
    "scale": lambda: large_class.many(200, at_a_time=2),
    "clusters": lambda: grading_by_slurm.run(6, jobs=2),
    "attacks": attacks.run,
    **judge_samples.by_lab(LABS),
    **false_fails.by_lab(LABS),
}


def run(parts: list[str] | None = None, json_file: Path | None = None) -> dict:
    if strangers := set(parts or []) - set(PARTS):
        raise SystemExit(f"no part {', '.join(sorted(strangers))}; there are {', '.join(PARTS)}")
    record = json.loads(json_file.read_text(encoding="utf-8")) if json_file and json_file.exists() else {}
    for part in parts or PARTS:
        record[part] = {"environment": environment(), "box": best_box().name} | PARTS[part]()
        if json_file:  # save each part at once: the next one may take an hour
            write_whole(json_file, json.dumps(record, indent=2) + "\n")
        _show(part, record[part])
    return record


def _show(part: str, found: dict) -> None:
    table = Table(title=part, title_justify="left", show_header=False)
    for name, value in found.items():
        if name != "environment":
            words = json.dumps(value, indent=1 if isinstance(value, dict) else None, ensure_ascii=False)
            table.add_row(name, escape(value if isinstance(value, str) else words))
    Console().print(table)
