"""The benchmarks run, say what they promise to say, and what is exact in them is exact."""

import json
import socket
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shardbench import ddp, environment, first, launch
from shardlab.model import preset


def test_environment_is_fit_to_be_published():
    found = environment()
    assert set(found) >= {"date", "torch", "python", "platform", "cpus", "load_average", "cuda_device"}
    text = json.dumps(found)
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text and str(Path.cwd()) not in text


@pytest.fixture(scope="module")
def result() -> dict:
    return ddp.run("1M", caps_mb=(0.25, None), pairs=4, world_size=2, micro_batch=1, seq_len=16)


def test_ddp_says_what_it_promises(result, capsys):
    assert json.loads(json.dumps(result)) == result
    assert [(row["engine"], row["bucket_cap_mb"]) for row in result["rows"]] == [
        ("DDP", 0.25),
        ("DDP", None),
        ("NaiveDDP", None),
    ]
    for row in result["rows"]:
        t = row["time"]
        assert 0 < t["low"] <= t["ratio"] <= t["high"]
    assert [row["time"]["pairs"] for row in result["rows"]] == [result["pairs"], result["pairs"], 2]
    assert result["environment"].keys() == environment().keys()
    ddp.show(result)
    assert "NaiveDDP" in capsys.readouterr().out


def test_ddp_equals_torchs_in_all_that_is_exact(result):
    gradient_bytes = 4 * preset("1M").n_params
    assert result["gradient_bytes"] == gradient_bytes
    for row in result["rows"][:2]:
        ours, torchs = row["ours"], row["torch"]
        assert row["max_abs_difference"] == 0.0
        assert ours["peak_bytes"] == sum(ours["peak_by_category"].values()) <= torchs["peak_bytes"]
        assert ours["collectives"] == torchs["collectives"]
        assert ours["wire_bytes"] == torchs["wire_bytes"] == gradient_bytes, "2 (N-1)/N of the gradients, N = 2"


def test_naive_ddp_sends_the_same_in_a_message_for_each_parameter(result):
    naive, n_layers = result["rows"][2], preset("1M").n_layers
    assert naive["ours"]["collectives"] == 3 + 9 * n_layers
    assert naive["ours"]["wire_bytes"] == naive["torch"]["wire_bytes"]
    assert naive["max_abs_difference"] < 1e-6


@pytest.mark.night
def test_launch_says_what_it_promises(capsys):
    found = launch.run(rounds=1, warm_launches=3)
    assert json.loads(json.dumps(found)) == found
    assert set(launch.MEASURES) <= set(found)
    seconds = {name: found[name]["median"] for name in launch.MEASURES}
    assert len(found["warm_s"]["samples"]) == 3
    assert seconds["import_s"] + seconds["first_s"] < seconds["process_s"]
    assert seconds["warm_s"] < 0.5 * seconds["torchrun_s"]
    launch.show(found)
    assert "torchrun" in capsys.readouterr().out


def test_the_first_cell_is_the_first_that_does_something(tmp_path):
    def cell(source, tag, end_time):
        return new_code_cell(source, metadata={"tags": [tag], "papermill": {"end_time": end_time}})

    given = [cell("tier = None", tag, "2030-01-01T00:00:00+00:00") for tag in ("parameters", "injected-parameters")]
    lesson = [new_markdown_cell("# 0"), *given, cell("1 + 1", "hide-input", "1970-01-01T00:01:00.500000+00:00")]
    nbformat.write(new_notebook(cells=lesson), tmp_path / "ran.ipynb")
    assert first._first_cell_done(tmp_path / "ran.ipynb") == 60.5
