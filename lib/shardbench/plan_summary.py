"""Summarise the planner's benchmark: how far predictions are off, part by part, and the worst row of each.

`shardlab bench plan` has some 700 rows. What is committed is this summary; `--rows` writes all rows to another file.
"""

from collections import defaultdict
from statistics import median

BOUNDS = (0.002, 0.01, 0.05, 0.1, 0.15, 0.2)  # of |ratio - 1|
MISS = 0.15
NAMES = ("model", "ranks", "library", "strategy", "run", "figure", "machine", "world_size")


def summarise(result: dict) -> dict:
    """Return `result` of `shardbench.plan.run` with each list of compared rows replaced by its summary.

    Published rows are summarised by figure, and apart: those that constants were fitted on, those outside of what the
    planner covers, and those that were predicted. Forecasts are "forecast blind", whatever was done with them later.
    Today's plan of the same runs is apart: of those that are "blind" still, and of those that the planner was "mended"
    by. `misses` has every published row that is more than MISS off today.
    """
    found = {name: _part(name, part) if name in _GROUPS else part for name, part in result.items()}
    return found | {
        "misses": [_miss(row) for row in result.get("published", ()) if abs((row["ratio"] or 1) - 1) > MISS]
    }


def _miss(row: dict) -> dict:
    named = {
        name: row[name] for name in ("run", "figure", "published", "used", "outside", "assumed", "differs") if row[name]
    }
    return named | {name: float(f"{row[name]:.4g}") for name in ("predicted", "ratio")}


def _part(name: str, rows: list[dict]) -> dict:
    groups: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        if row.get("ratio") is not None:
            groups[_GROUPS[name](row)].append(row)
        if row.get("forecast_ratio"):
            forecast = row | {"ratio": row["forecast_ratio"], "outside": "", "used": "forecast blind"}
            groups[_GROUPS[name](forecast)].append(forecast)
            groups[f"{row['what']}, forecast blind, {row['table']}"].append(forecast)
    return {group: _group(members) for group, members in sorted(groups.items())}


def _group(rows: list[dict]) -> dict:
    """Count the rows within each bound of |ratio - 1|, and name the one that is farthest off."""
    off = [abs(row["ratio"] - 1) for row in rows]
    worst = max(rows, key=lambda row: abs(row["ratio"] - 1))
    return {
        "rows": len(rows),
        "within": {f"{bound:.1%}": sum(x <= bound for x in off) for bound in BOUNDS},
        "median_off": round(median(off), 6),
        "worst": {name: worst[name] for name in NAMES if name in worst} | {"ratio": round(worst["ratio"], 4)},
    }


_GROUPS = {
    "measured": lambda row: f"{row['library']}, {row['ranks']} ranks",
    "traced": lambda row: f"{row['model']}, {row['ranks']} ranks",
    "published": lambda row: f"{row['figure']}, {'outside' if row['outside'] else row['used']}",
}
