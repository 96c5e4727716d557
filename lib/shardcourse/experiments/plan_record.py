"""The planner's own record, for lesson 14a: how far its forecasts of published runs were off, and which missed.

`shardlab bench plan` makes the files that are read here.
"""

import json
from pathlib import Path

from shardcourse.repository import ROOT
from shardplan.published import SPEED

BENCHMARKS = ROOT / "lib" / "benchmarks"
_SPEED, _MEMORY = SPEED + ("steps_per_s",), ("memory_gib", "memory_gb")


def record_file() -> Path:
    """Return the newest record."""
    return max(BENCHMARKS.glob("plan-*.json"), key=lambda file: json.loads(file.read_text())["environment"]["date"])


def record() -> dict[str, dict[str, int]]:
    """Return {"memory", "speed": {"runs", "5.0%", "10.0%", ...: those within}} of all runs that were forecast.

    Runs are left out if a constant was fitted on them, or if the planner says that it does not cover them.
    """
    published = json.loads(record_file().read_text())["published"]
    return {what: _sum(published, figures) for what, figures in (("memory", _MEMORY), ("speed", _SPEED))}


def _sum(published: dict[str, dict], figures: tuple[str, ...]) -> dict[str, int]:
    rows = [group for name, group in published.items() if name in {f"{figure}, predicted" for figure in figures}]
    bounds = {bound: sum(group["within"][bound] for group in rows) for bound in ("5.0%", "10.0%", "15.0%")}
    return {"runs": sum(group["rows"] for group in rows), **bounds}


def misses() -> list[tuple[str, str, int, float, float, str]]:
    """Return (job, what, misses, lowest and highest ratio of forecast to published, why), the farthest off first.

    `what` is "speed" or "memory". `why` is empty if it is in the job's name, or not known.
    """
    found: dict[tuple[str, str], list[dict]] = {}
    for row in json.loads(record_file().read_text())["misses"]:
        what = "memory" if row["figure"] in _MEMORY else "speed"
        found.setdefault((row.get("outside") or row["run"].rpartition("-")[0], what), []).append(row)
    rows = [
        (*name, len(of), min(r["ratio"] for r in of), max(r["ratio"] for r in of), of[0].get("differs", ""))
        for name, of in found.items()
    ]
    return sorted(rows, key=lambda row: -max(row[4], 1 / row[3]))
