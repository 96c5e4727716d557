"""The summary of the planner's benchmark: counts, medians, the worst row, and every published miss."""

from shardbench.plan_summary import summarise

MEASURED = [
    {"library": "ours", "ranks": 2, "model": "1M", "strategy": {}, "ratio": ratio, "predicted": {"parameters": 1}}
    for ratio in (1.0, 1.001, 0.97)
]


def published(run: str, ratio: float | None, **more) -> dict:
    row = {
        "run": run,
        "figure": "mfu",
        "published": 0.5,
        "predicted": 0.5 * (ratio or 1),
        "ratio": ratio,
        "used": "predicted",
    }
    return row | {"outside": "", "assumed": "", "differs": ""} | more


def test_a_group_says_how_many_are_within_each_bound_and_which_is_worst():
    group = summarise({"measured": MEASURED})["measured"]["ours, 2 ranks"]
    assert group["rows"] == 3
    assert group["within"] == {"0.2%": 2, "1.0%": 2, "5.0%": 3, "10.0%": 3, "15.0%": 3, "20.0%": 3}
    assert group["median_off"] == 0.001
    assert group["worst"] == {"model": "1M", "ranks": 2, "library": "ours", "strategy": {}, "ratio": 0.97}


def test_a_published_miss_is_listed_with_why_and_fitted_runs_stand_apart():
    rows = [published("near", 1.1), published("far", 1.5, differs="float8"), published("fitted", 1.0, used="fit")]
    found = summarise({"published": rows, "environment": {"torch": "2.13"}})
    assert {name: group["rows"] for name, group in found["published"].items()} == {"mfu, fit": 1, "mfu, predicted": 2}
    (miss,) = found["misses"]
    assert miss["run"] == "far" and miss["differs"] == "float8" and miss["ratio"] == 1.5
    assert found["environment"] == {"torch": "2.13"}


def test_a_row_without_a_ratio_is_no_evidence():
    assert summarise({"published": [published("none", None)]}) == {"published": {}, "misses": []}


def test_a_forecast_counts_as_it_was_made_and_todays_plan_apart():
    """Whatever became of the run: blind still, or one by which the planner was mended."""
    more = {"what": "speed", "table": "a", "forecast_ratio": 1.4}
    rows = [published(used, 1.0, used=used, **more) for used in ("blind", "mended")]
    found = summarise({"published": rows})["published"]
    assert {name: (group["rows"], group["median_off"]) for name, group in found.items()} == {
        "mfu, blind": (1, 0.0),
        "mfu, mended": (1, 0.0),
        "mfu, forecast blind": (2, 0.4),
        "speed, forecast blind, a": (2, 0.4),
    }
