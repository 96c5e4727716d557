"""The planner's record as lesson 14a shows it: counts are sums of the file's, and misses are grouped by their job."""

import json

from shardcourse.experiments import plan_record


def row(run: str, ratio: float, figure: str = "tokens_per_s", **more: str) -> dict:
    return {"run": run, "ratio": ratio, "figure": figure} | more


def group(rows: int, *within: int) -> dict:
    return {"rows": rows, "within": dict(zip(("5.0%", "10.0%", "15.0%"), within, strict=True))}


RECORD = {
    "published": {
        "tokens_per_s, predicted": group(10, 5, 8, 9),
        "mfu, predicted": group(2, 0, 1, 2),
        "tokens_per_s, fit": group(13, 13, 13, 13),
        "tokens_per_s, outside": group(4, 0, 0, 0),
        "memory_gib, predicted": group(3, 1, 2, 3),
    },
    "misses": [
        row("a-1", 1.2, differs="old"),
        row("a-2", 1.3, differs="old"),
        row("b-1", 0.5, "memory_gib"),
        row("c-1", 1.4, outside="float8"),
    ],
}


def test_fitted_and_uncovered_runs_do_not_count(monkeypatch, tmp_path):
    (tmp_path / "record").write_text(json.dumps(RECORD))
    monkeypatch.setattr(plan_record, "record_file", lambda: tmp_path / "record")
    assert plan_record.record() == {
        "memory": {"runs": 3, "5.0%": 1, "10.0%": 2, "15.0%": 3},
        "speed": {"runs": 12, "5.0%": 5, "10.0%": 9, "15.0%": 11},
    }
    found = plan_record.misses()
    assert found == [
        ("b", "memory", 1, 0.5, 0.5, ""),
        ("float8", "speed", 1, 1.4, 1.4, ""),
        ("a", "speed", 2, 1.2, 1.3, "old"),
    ]


def test_the_newest_record_is_read():
    found = plan_record.record()
    assert plan_record.record_file().name.startswith("plan-")
    assert all(0 < of["5.0%"] <= of["10.0%"] <= of["15.0%"] <= of["runs"] for of in found.values())
