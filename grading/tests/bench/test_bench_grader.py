"""The grader's benchmark: what it keeps, and that it tells of what it came for. Its figures are not made here."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from grading.bench import false_fails, grader_benchmarks, grading_by_slurm
from grading.judge.verdict import Verdict
from shardbench.slurm_here import obstacle


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(grader_benchmarks, "PARTS", {"one": lambda: {"n": 1}, "two": lambda: {"n": 2}})


def test_parts_that_are_not_measured_anew_are_kept(parts, tmp_path):
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"one": {"n": 10}, "two": {"n": 20}}))
    record = grader_benchmarks.run(["two"], file)
    assert (record["one"], record["two"]["n"]) == ({"n": 10}, 2)
    assert {"environment", "box"} <= record["two"].keys()
    assert {name: part["n"] for name, part in grader_benchmarks.run(None, file).items()} == {"one": 1, "two": 2}


def test_what_was_measured_before_the_end_came_is_in_the_file(parts, tmp_path, monkeypatch):
    def cut_off():
        raise KeyboardInterrupt

    monkeypatch.setitem(grader_benchmarks.PARTS, "two", cut_off)
    with pytest.raises(KeyboardInterrupt):
        grader_benchmarks.run(None, tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text())["one"]["n"] == 1


def test_what_is_measured_now_is_shown_and_nothing_else(parts, tmp_path, capsys):
    (tmp_path / "record.json").write_text(json.dumps({"one": {"n": 10}, "earlier": {"seconds": [1, 2]}}))
    grader_benchmarks.run(["two"], tmp_path / "record.json")
    shown = capsys.readouterr().out
    assert "two" in shown and "one" not in shown and "earlier" not in shown


def test_an_unknown_part_is_told_before_anything_is_measured(parts, tmp_path):
    with pytest.raises(SystemExit, match="no part three; there are one, two"):
        grader_benchmarks.run(["one", "three"], tmp_path / "record.json")


def test_every_lab_has_its_wrong_and_its_right_ones():
    assert sum(name.startswith("mutants of lab") for name in grader_benchmarks.PARTS) == len(grader_benchmarks.LABS)
    assert sum(name.startswith("right ones of lab") for name in grader_benchmarks.PARTS) == 2 * len(
        grader_benchmarks.LABS
    )


def test_right_ones_that_get_fewer_points_or_none_yet_are_told(monkeypatch):
    people = [SimpleNamespace(name=name, points={}, cause="") for name in ("right", "right_but_failed", "right_noisy")]
    verdicts = {
        "right": Verdict("c", 2, 2, "held"),
        "right_but_failed": Verdict("c", 0, 2, "too slow"),
        "right_noisy": Verdict("c", 0, 2, "noise", inconclusive=True),
    }
    wrong = SimpleNamespace(name="wrong", points={"c": 0}, cause="")
    monkeypatch.setattr(false_fails, "samples", lambda lab: [*people, wrong])
    monkeypatch.setattr(false_fails, "Referee", lambda *_: nullcontext())
    monkeypatch.setattr(false_fails, "handed_in", lambda sample: {})
    monkeypatch.setattr(false_fails, "judge", lambda sample, answers, referee: [verdicts[sample.name]])
    found = false_fails.right_ones("lab", times=2, busy_cores=1)
    assert (found["gradings"], found["all points"], found["processes beside it"]) == (6, 2, 1)
    assert len(found["surprises"]) == 4
    assert "too slow" in found["surprises"][0][0] and "noise" in found["surprises"][1][0]


@pytest.mark.night
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_class_is_graded_by_jobs_here_and_of_a_real_slurm():
    found = grading_by_slurm.run(2, jobs=2)
    for cluster in ("local", "slurm"):
        assert (found[cluster]["points as due"], found[cluster]["problems"]) == (2, [])
    assert found["slurm"]["version"].startswith("slurm")


def test_where_there_is_no_slurm_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(grading_by_slurm, "_graded", lambda n, jobs, cluster: {"jobs": jobs})
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    assert grading_by_slurm.run(2, jobs=1)["slurm"].endswith("install slurm-wlm and munge")
