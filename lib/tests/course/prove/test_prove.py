"""`shardlab prove`: what counts as held, parts that crash or hang, going on after a stop, the page, README's table."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardcourse.cli.prove import measure
from shardcourse.prove.page import name_of, page, record_of, records_in, with_table
from shardcourse.prove.parts import Part, complaints, parts
from shardcourse.prove.runner import run_parts
from shardcourse.repository import ROOT
from shardlab.tier import TIERS

ROW = {"engine": "DDP", "max_loss_difference": 0.0, "ours": {"broken": []}}
PLANNED = {"strategy": "FSDP", "planned_bytes": 100 << 20, "measured_bytes": 100 << 20}
WHOLE = {"model": "1B", "sharding": "NONE", "precision": "bf16", "recompute": "full", "micro_batch": 4, "seq_len": 2048}
WHOLE |= {"planned_bytes": 100 << 20, "measured_bytes": 100 << 20}
GRADED = {"points": 15, "of": 15, "problems": []}
MISSING = {"what": "memory", "found": "1 GiB", "ok": False, "needed": True, "remedy": "close something"}


@pytest.mark.parametrize(
    ("name", "sound", "broken", "words"),
    [
        ("machine", {"findings": [MISSING | {"ok": True}]}, {"findings": [MISSING]}, "memory: 1 GiB: close something"),
        ("machine", {"findings": [MISSING | {"needed": False}]}, {"findings": [MISSING]}, "memory"),
        ("engines", {"rows": [ROW]}, {"rows": [ROW | {"max_loss_difference": 0.1}]}, "DDP: losses differ"),
        ("engines", {"rows": [ROW]}, {"rows": [ROW | {"max_loss_difference": float("nan")}]}, "DDP: losses differ"),
        ("nccl alone", {"rows": [ROW]}, {"rows": [ROW | {"ours": {"broken": ["overlap"]}}]}, "breaks overlap"),
        ("streams", {"rows": [ROW]}, {"rows": []}, "no engine"),
        (
            "planner",
            {"rows": [PLANNED]},
            {"rows": [PLANNED | {"measured_bytes": 107 << 20}]},
            "100.0 MiB planned, 107.0",
        ),
        ("planner", {"rows": [PLANNED]}, {"rows": [PLANNED | {"measured_bytes": 94 << 20}]}, "100.0 MiB planned, 94.0"),
        ("planner", {"rows": [PLANNED]}, {"rows": []}, "nothing"),
        ("whole gpu", {"rows": [WHOLE]}, {"rows": [WHOLE | {"measured_bytes": 107 << 20}]}, "bf16 full 4 2048: 100"),
        ("solution:lab2_ddp", {"labs": [GRADED]}, {"labs": [GRADED | {"points": 14.5}]}, "14.5 of 15 points"),
        ("solution:lab2_ddp", {"labs": [GRADED]}, {"labs": [GRADED | {"problems": ["cell 3 warns"]}]}, "cell 3 warns"),
        ("solution:lab2_ddp", {"labs": [GRADED]}, {"labs": []}, "no solution"),
        (
            "class:lab2_ddp",
            {"surprises": {}, "right ones": 2, "wrong ones": 2},
            {"surprises": {"slow": ["2/2"]}, "right ones": 2, "wrong ones": 2},
            "slow: 2/2",
        ),
        (
            "class:lab2_ddp",
            {"surprises": {}, "right ones": 2, "wrong ones": 2},
            {"surprises": {}, "right ones": 2, "wrong ones": 0},
            "no submission of one kind",
        ),
        ("lesson:00_start", {"problems": []}, {"problems": ["cell 2: ValueError"]}, "cell 2"),
    ],
)
def test_what_counts_as_held(name, sound, broken, words):
    assert complaints(name, sound) == []
    assert any(words in complaint for complaint in complaints(name, broken))


def test_every_lesson_and_lab_is_a_part_and_each_part_has_a_reader():
    lessons = [file.stem for file in (ROOT / "course").glob("*.ipynb")]
    labs = [folder.name for folder in (ROOT / "solutions").glob("lab*")]
    names = [part.name for part in parts(TIERS["gpu8"], lessons, labs)]
    assert len(names) == len(set(names)) == 6 + 2 * len(labs) + len(lessons)
    assert "streams" in names and "nccl alone" in names
    on_cpu = [part.name for part in parts(TIERS["cpu"], lessons, labs)]
    assert set(names) - set(on_cpu) == {"streams", "nccl alone", "whole gpu"}
    for name in names:
        with pytest.raises(KeyError):  # an empty record is never held: its reader looks for a figure
            complaints(name, {})


FAKES = {
    "machine": "import json, sys; json.dump({'findings': []}, open(sys.argv[1], 'w')); print('looked')",
    "lesson:fails": "import json, sys; json.dump({'problems': ['cell 2: no']}, open(sys.argv[1], 'w'))",
    "lesson:crashes": "print('about to crash'); raise SystemExit(3)",
    "lesson:lies": "import json, sys; json.dump({'problems': []}, open(sys.argv[1], 'w')); raise SystemExit(1)",
    "lesson:says nothing": "",
    "lesson:hangs": (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True).pid,"
        " flush=True)\n"
        "time.sleep(600)"
    ),
}


def fake_command(part: Part, file: Path) -> list[str]:
    return [sys.executable, "-c", FAKES[part.name], str(file)]


def run_fakes(folder: Path, key: str = "a", names=tuple(FAKES)) -> dict[str, dict]:
    wanted = [Part(name, "", limit_s=4.0 if "hangs" in name else 60.0) for name in names]
    return run_parts(wanted, folder, fake_command, key, lambda part, outcome: None)


def test_a_part_that_crashes_lies_or_hangs_is_a_line_of_the_record_and_the_others_run(tmp_path):
    outcomes = run_fakes(tmp_path)
    assert [name for name, outcome in outcomes.items() if outcome["held"]] == ["machine"]
    said = {name: " ".join(outcome["complaints"]) for name, outcome in outcomes.items()}
    assert said["lesson:fails"] == "cell 2: no"
    assert "exit status 3" in said["lesson:crashes"] and "about to crash" in said["lesson:crashes"]
    assert "exit status 1" in said["lesson:lies"]
    assert "no figures" in said["lesson:says nothing"]
    assert "did not end within 4 s" in said["lesson:hangs"]
    grandchild = int((tmp_path / "lesson-hangs.log").read_text())
    time.sleep(0.1)
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_it_goes_on_where_it_was_stopped_and_runs_again_what_changed(tmp_path):
    first = run_fakes(tmp_path, names=("machine",))
    log = tmp_path / "machine.log"
    log.write_text("untouched")
    assert run_fakes(tmp_path, names=("machine", "lesson:fails"))["machine"] == first["machine"]
    assert log.read_text() == "untouched"
    run_fakes(tmp_path, key="b", names=("machine",))
    assert log.read_text() == "looked\n"


def record(tmp_path: Path) -> dict:
    wanted = [Part(name, "a claim", 60.0) for name in ("machine", "lesson:fails", "lesson:crashes")]
    outcomes = run_fakes(tmp_path, names=("machine", "lesson:fails", "lesson:crashes"))
    return record_of(TIERS["cpu"], [*wanted, Part("planner", "", 60.0)], outcomes, "a")


def test_the_page_says_what_held_what_did_not_and_what_to_do(tmp_path):
    made = record(tmp_path)
    assert (made["held"], made["of"]) == (1, 4)
    words = page(made)
    assert "# 1 of 4 parts held: tier cpu" in words and "Not run: planner." in words
    assert "| machine | yes |" in words and "| lesson:fails | **no** |" in words
    assert "## lesson:crashes did not hold" in words and "about to crash" in words
    assert f"{name_of(made)}.json" in words and "shardlab prove --readme" in words
    json.dumps(made)


def test_readmes_table_is_that_of_the_records():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme, records_in(ROOT / "lib" / "benchmarks")) == readme


def test_the_table_has_a_row_for_each_record_and_nothing_else_of_the_text_changes(tmp_path):
    made = record(tmp_path)
    text = "before\n<!-- proofs: written by `shardlab prove --readme` -->old<!-- end of proofs -->\nafter"
    found = with_table(text, [made, made])
    assert found.startswith("before\n") and found.endswith("\nafter") and "old" not in found
    assert found.count("| cpu | 4 |") == 2 and "| 1 of 3 | 4 |" in found
    with pytest.raises(ValueError, match="needs the lines"):
        with_table("no place", [])


@pytest.mark.night
def test_the_planner_holds_on_cpu_ranks():
    assert complaints("planner", measure("planner", "cpu", 0)) == []
