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


KINDS = {"result known": "predicted", "blind, first plan": "forecast blind", "blind, today": "blind"}


def record() -> dict[tuple[str, str], dict[str, int]]:
    """Return {("memory", kind): {"runs", "5.0%", "10.0%", "15.0%": those within}, ("speed", kind): ...}.

    Where the result was known, it was in view when settings that the source leaves open were chosen. A blind run was
    planned before its result was seen; today's plan of it counts if the planner was not mended by it since. Runs are
    left out if a constant was fitted on them, or if the planner says that it does not cover them.
    """
    published = json.loads(record_file().read_text())["published"]
    return {
        (what, kind): _sum(published, [f"{figure}, {group}" for figure in figures])
        for what, figures in (("memory", _MEMORY), ("speed", _SPEED))
        for kind, group in KINDS.items()
    }


def _sum(published: dict[str, dict], names: list[str]) -> dict[str, int]:
    rows = [published[name] for name in names if name in published]
    bounds = {bound: sum(group["within"][bound] for group in rows) for bound in ("5.0%", "10.0%", "15.0%")}
    return {"runs": sum(group["rows"] for group in rows), **bounds}


def misses() -> list[tuple[str, str, int, float, float, str]]:
    """Return (job, what, misses, lowest and highest ratio of forecast to published, why), the farthest off first.

    These are today's plans of the runs that `record` counts. `what` is "speed" or "memory". `why` may be empty.
    """
    found: dict[tuple[str, str], list[dict]] = {}
    counted = {group for group in KINDS.values() if group != "forecast blind"}
    for row in json.loads(record_file().read_text())["misses"]:
        if row["used"] not in counted or row.get("outside"):
            continue
        what = "memory" if row["figure"] in _MEMORY else "speed"
        found.setdefault((row["run"].rpartition("-")[0], what), []).append(row)
    rows = [
        (*name, len(of), min(r["ratio"] for r in of), max(r["ratio"] for r in of), of[0].get("differs", ""))
        for name, of in found.items()
    ]
    return sorted(rows, key=lambda row: -max(row[4], 1 / row[3]))
