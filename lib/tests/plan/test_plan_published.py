"""The published runs: the file is sound, its setups are what their sources say, and the predictions are close.

The goals are issue 5's: torchtitan's Llama 3.1 8B within 10% of the memory and 15% of the speed.
"""

import json
from collections import Counter
from functools import cache
from statistics import median

import pytest

from shardbench import plan_published
from shardplan import flops, published
from shardplan.published import FILE, MEMORY, SPEED, Run, runs

RUNS = {r.id: r for r in runs()}


@cache
def rows() -> list[dict]:
    return plan_published.run()


def ratios(what: str, table: str, used: str = "predicted") -> list[float]:
    return [r["ratio"] for r in rows() if (r["what"], r["table"], r["used"]) == (what, table, used)]


class TestFile:
    def test_has_at_least_sixty_runs_each_with_a_source_and_a_figure(self):
        assert len(RUNS) == len(runs()) >= 60, "and no id twice"
        for r in runs():
            assert r.source and r.url.startswith("https://") and r.read in ("table", "summary", "recalled")
            assert (r.published or r.forecast) and {*r.published, *r.forecast} <= {*MEMORY, *SPEED}

    def test_a_blind_run_has_a_rule_and_forecasts_of_what_was_measured(self):
        """A run that was not blind has neither: a forecast that is entered afterwards is none."""
        for r in runs():
            was_blind = r.used in ("blind", "mended")
            assert was_blind == bool(r.rule) == bool(r.forecast), r.id
            assert set(r.published) <= {*r.forecast, "fits"} or not was_blind
            assert not (r.assumed and was_blind), "what a source leaves open is chosen by the rule"

    def test_eighty_runs_of_eight_sources_are_blind_still(self):
        """And 42 more were, before the planner was mended by them."""
        blind = [r for r in runs() if r.used == "blind" and r.published]
        assert len(blind) >= 80 and len({r.url for r in blind}) >= 8
        mended = [r for r in runs() if r.used == "mended"]
        sources = {r.source.split(",")[0] for r in mended}
        assert sources == {"Kempner Institute 2026", "NVIDIA 2025", "Prime Intellect 2026", "torchtitan"}
        assert len(mended) == 42

    @pytest.mark.parametrize("table", {r.table: r for r in runs()}.values(), ids=lambda r: r.table)
    def test_every_run_goes_together(self, table):
        for r in runs():
            assert r.table != table.table or r.setup.world_size == r.world_size

    def test_what_was_read_from_the_tables_themselves_is_most_of_it(self):
        read = Counter(r.read for r in runs())
        assert read["table"] > 200 > read["recalled"] > read["summary"]

    def test_fits_are_few_and_none_of_them_is_among_the_goals(self):
        """Constants are fitted on one node of llm-foundry's, at 2048 positions; a dozen of 270 runs."""
        fitted = [r for r in runs() if r.used == "fit"]
        assert {(r.table, r.world_size, r.strategy["seq_len"]) for r in fitted} == {
            ("llm-foundry-h100", 8, 2048),
            ("llm-foundry-a100-80gb", 8, 2048),
        }
        assert len(fitted) < 0.06 * len(runs())

    def test_models_that_the_file_makes_have_the_published_number_of_parameters(self):
        """llm-foundry's table has a column for it, at 2048 positions; Megatron's names its models by it."""
        for name, model in json.loads(FILE.read_text())["models"].items():
            n_params = published._shape(name, 2048).n_params
            if "published_params_at_2048" in model:
                assert n_params == model["published_params_at_2048"]
            elif name.startswith("megatron-"):
                billions = name.removeprefix("megatron-").removesuffix("b")
                digits = 1 if "." in billions else 0
                assert round(n_params / 1e9, digits) == float(billions)

    def test_learned_positions_follow_the_length_of_the_sequences(self):
        """The 7b has 8,388,608 parameters more at 4096 positions than at 2048: 4096 x 2048."""
        assert published._shape("llm-foundry-7b", 4096).n_params == 6_667_247_616


class TestConsistency:
    """Figures of one run that its source gives twice agree with each other: a slip of the pen would show here."""

    @pytest.mark.parametrize(
        "run", [r for r in runs() if {"tokens_per_s", "mfu"} <= set(r.published)], ids=lambda r: r.id
    )
    def test_tokens_and_mfu(self, run: Run):
        """torchtitan's formula has the embedding's parameters in it, 1% to 7%, and attention whole."""
        setup = run.setup
        of_a_token = flops.model_flops(setup) / (setup.tokens * setup.strategy.accumulation)
        lookups = 6 * setup.shape.vocab_size * setup.shape.dim
        mfu = run.published["tokens_per_s"] * of_a_token / setup.machine.flops
        with_lookups = run.published["tokens_per_s"] * (of_a_token + lookups) / setup.machine.flops
        assert mfu * 0.98 < run.published["mfu"] < with_lookups * 1.02

    @pytest.mark.parametrize("run", [r for r in runs() if {"step_s", "mfu"} <= set(r.published)], ids=lambda r: r.id)
    def test_step_and_mfu(self, run: Run):
        mfu = flops.model_flops(run.setup) / run.published["step_s"] / run.setup.machine.flops
        assert mfu == pytest.approx(run.published["mfu"], rel=0.01)

    @pytest.mark.parametrize(
        "run", [r for r in runs() if {"step_s", "hardware_tflops"} <= set(r.published)], ids=lambda r: r.id
    )
    def test_step_and_flops_with_recomputation(self, run: Run):
        tflops = plan_published._with_a_forward_more(run.setup) / run.published["step_s"] / 1e12
        assert tflops == pytest.approx(run.published["hardware_tflops"], rel=0.02)

    def test_llama_3s_mfu_is_its_tflops_over_the_peak(self):
        for r in runs():
            if r.table == "llama-3-405b":
                assert r.published["model_tflops"] * 1e12 / r.setup.machine.flops == pytest.approx(
                    r.published["mfu"], abs=0.01
                )

    def test_zeros_figure_is_its_arithmetic(self):
        """2 + 2 + 12 bytes a parameter of 7.5 G, whole or over 64: figure 1's numbers, and table 1's."""
        parts = {"DDP": (1, 1, 1), "ZERO_1": (1, 1, 0), "ZERO_2": (1, 0, 0), "FULL_SHARD": (0, 0, 0)}
        for r in runs():
            if r.table.startswith("zero-") and r.memory_of == "states":
                whole = parts[r.strategy["sharding"]]
                shares = [1 if kept else 1 / r.world_size for kept in whole]
                gb = 7.5 * sum(n * share for n, share in zip((2, 2, 12), shares, strict=True))
                assert r.published["memory_gb"] == pytest.approx(gb, rel=0.03)


class TestPredictions:
    """Of runs that nothing was fitted on. What misses is in the bench's table with its reason, and counted here."""

    def test_torchtitans_memory_within_10_percent(self):
        assert all(abs(ratio - 1) < 0.10 for ratio in ratios("memory", "torchtitan-8b"))

    def test_torchtitans_speed_within_15_percent(self):
        for table in ("torchtitan-8b", "torchtitan-8b-a100", "torchtitan-70b-a100", "torchtitan-llama2-a100"):
            assert all(abs(ratio - 1) < 0.15 for ratio in ratios("speed", table)), table

    def test_zeros_memory_within_4_percent(self):
        """Rounded in the source: 0.12 and 1.9 GB; and 7.47 G parameters stand for 7.5."""
        for table in ("zero-figure-1", "zero-table-1"):
            assert all(abs(ratio - 1) < 0.04 for ratio in ratios("memory", table)), table

    def test_llama_3s_mfu_within_15_percent(self):
        assert all(abs(ratio - 1) < 0.15 for ratio in ratios("speed", "llama-3-405b"))

    @pytest.mark.parametrize("table", ["megatron-2021", "megatron-2022-full"])
    def test_megatrons_speed_within_15_percent(self, table):
        assert all(abs(ratio - 1) < 0.15 for ratio in ratios("speed", table))

    def test_a_faster_step_than_published_is_a_ratio_above_1(self):
        run = RUNS["megatron-2022-full-1"]
        slower = Run(**vars(run) | {"published": {"step_s": 2 * run.published["step_s"]}})
        (honest,), (slow,) = ([r for r in plan_published.rows_of(x) if r["what"] == "speed"] for x in (run, slower))
        assert slow["ratio"] == pytest.approx(2 * honest["ratio"])

    def test_it_is_never_said_of_a_run_that_ran_that_it_does_not_fit(self):
        """A test of memory that no source publishes."""
        ran = [r for r in rows() if r["what"] == "fits" and r["published"]]
        assert len(ran) > 270 and [r["run"] for r in ran if not r["predicted"]] == []

    @pytest.mark.parametrize(("used", "share"), [("predicted", 0.9), ("blind", 0.6)])
    def test_most_published_speeds_lie_in_the_planned_range(self, used, share):
        found = [r for r in rows() if r["what"] == "speed" and not r["outside"] and r["used"] == used]
        inside = sum(r["range"][0] <= r["published"] <= r["range"][1] for r in found if r["figure"] != "steps_per_s")
        assert inside > share * sum(r["figure"] != "steps_per_s" for r in found)

    def test_a_blind_run_is_compared_with_its_forecast_and_not_with_a_later_plan(self):
        blind = [r for r in rows() if r["used"] in ("blind", "mended") and r["what"] != "fits"]
        assert len(blind) == 216 and all(r["forecast_ratio"] for r in blind)
        (line,) = plan_published.summary([blind[0] | {"ratio": 1.0}])
        assert line["median"] == blind[0]["forecast"] / blind[0]["published"] != 1.0

    @pytest.mark.parametrize("table", ["llm-foundry-h100", "llm-foundry-a100-80gb", "llm-foundry-a100-40gb"])
    def test_most_of_llm_foundrys_speeds_within_15_percent(self, table):
        found = ratios("speed", table)
        assert len(found) > 40 and abs(median(found) - 1) < 0.1
        assert sum(abs(ratio - 1) < 0.15 for ratio in found) > 0.75 * len(found)

    def test_over_all_predicted_runs_the_middle_is_close_and_the_misses_are_few(self):
        found = [r["ratio"] for r in rows() if r["what"] == "speed" and r["used"] == "predicted" and not r["outside"]]
        assert len(found) > 200 and abs(median(found) - 1) < 0.08
        assert sum(abs(ratio - 1) > 0.15 for ratio in found) < 0.15 * len(found)

    def test_a_table_with_a_miss_says_why_or_that_it_is_not_explained(self):
        for line in plan_published.summary([r for r in rows() if not r["outside"]]):
            if line["within"] < line["n"] and line["what"] != "fits":
                assert line["differs"] or line["high"] < 1.16, line

    def test_a_prediction_knows_nothing_of_the_published_figures(self):
        """Other figures in the file, the same predictions."""
        run = RUNS["torchtitan-8b-1"]
        forged = Run(**vars(run) | {"published": {"tokens_per_s": 1.0, "memory_gib": 1.0}})
        honest, lied = plan_published.rows_of(run), plan_published.rows_of(forged)
        assert [r["predicted"] for r in honest] == [r["predicted"] for r in lied]


class TestTables:
    def test_rows_go_into_json(self):
        assert json.loads(json.dumps(rows())) == rows()

    def test_every_run_has_a_row_for_speed_or_memory_and_the_summary_counts_them_all(self):
        assert {r["run"] for r in rows()} == set(RUNS)
        assert sum(line["n"] for line in plan_published.summary(rows())) == len(rows())

    def test_hits_are_within_the_goal(self):
        row = next(r for r in rows() if r["what"] == "speed")
        made = [row | {"ratio": ratio} for ratio in (0.84, 0.86, 1.0, 1.14, 1.16)]
        (line,) = plan_published.summary(made)
        assert (line["within"], line["n"], line["low"], line["high"]) == (3, 5, 0.84, 1.16)

    def test_it_is_shown(self, capsys):
        plan_published.show(rows())
        shown = capsys.readouterr().out
        assert "torchtitan-8b" in shown and "does it fit" in shown
