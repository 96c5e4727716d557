"""The planner's record as lesson 14a shows it: counts are sums of the file's, and misses are grouped by their job."""

import json

from shardcourse.experiments import plan_record


def row(run: str, ratio: float, figure: str = "tokens_per_s", used: str = "predicted", **more: str) -> dict:
    return {"run": run, "ratio": ratio, "figure": figure, "used": used} | more


def group(rows: int, *within: int) -> dict:
    return {"rows": rows, "within": dict(zip(("5.0%", "10.0%", "15.0%"), within, strict=True))}


RECORD = {
    "published": {
        "tokens_per_s, predicted": group(10, 5, 8, 9),
        "mfu, predicted": group(2, 0, 1, 2),
        "tokens_per_s, fit": group(13, 13, 13, 13),
        "tokens_per_s, outside": group(4, 0, 0, 0),
        "memory_gib, predicted": group(3, 1, 2, 3),
        "tokens_per_s, blind": group(5, 1, 2, 4),
        "tokens_per_s, forecast blind": group(7, 0, 1, 2),
        "tokens_per_s, mended": group(2, 2, 2, 2),
    },
    "misses": [
        row("a-1", 1.2, differs="old"),
        row("a-2", 1.3, differs="old"),
        row("b-1", 0.5, "memory_gib"),
        row("c-1", 1.4, outside="float8"),
        row("d-1", 1.5, used="blind"),
        row("e-1", 1.6, used="mended"),
    ],
}


def test_fitted_mended_and_uncovered_runs_do_not_count(monkeypatch, tmp_path):
    (tmp_path / "record").write_text(json.dumps(RECORD))
    monkeypatch.setattr(plan_record, "record_file", lambda: tmp_path / "record")
    none = {"runs": 0, "5.0%": 0, "10.0%": 0, "15.0%": 0}
    assert plan_record.record() == {
        ("memory", "result known"): {"runs": 3, "5.0%": 1, "10.0%": 2, "15.0%": 3},
        ("memory", "blind, first plan"): none,
        ("memory", "blind, today"): none,
        ("speed", "result known"): {"runs": 12, "5.0%": 5, "10.0%": 9, "15.0%": 11},
        ("speed", "blind, first plan"): {"runs": 7, "5.0%": 0, "10.0%": 1, "15.0%": 2},
        ("speed", "blind, today"): {"runs": 5, "5.0%": 1, "10.0%": 2, "15.0%": 4},
    }
    found = plan_record.misses()
    assert found == [
        ("b", "memory", 1, 0.5, 0.5, ""),
        ("d", "speed", 1, 1.5, 1.5, ""),
        ("a", "speed", 2, 1.2, 1.3, "old"),
    ]


def test_the_newest_record_is_read():
    found = plan_record.record()
    assert plan_record.record_file().name.startswith("plan-")
    assert all(0 < of["5.0%"] <= of["10.0%"] <= of["15.0%"] <= of["runs"] for of in found.values())


def test_the_list_of_misses_has_the_runs_that_are_counted():
    """A reader found 93 misses in the list below a record of 39."""
    for what in ("memory", "speed"):
        counted = [of["runs"] - of["15.0%"] for (w, kind), of in plan_record.record().items() if w == what]
        assert sum(n for _, w, n, *_ in plan_record.misses() if w == what) == counted[0] + counted[2]
