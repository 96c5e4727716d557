"""Profiles and flight recorder dumps of real GPU jobs, beside answers that were worked out independently.

The files are not part of this repository, since others wrote them. They are read where they are: in the folder that
SHARDLAB_GPU_ARTEFACTS names, or in `shared/gpu` beside the repository. It has `kineto/*.json.gz`, `flight_recorder/*/`
and `answers.json`. Where it is missing, these tests do not run, and say so.
"""

import json
import os
import warnings
from collections import Counter
from pathlib import Path

import pytest

from shardlab.launch.flight_recorder import read_dump
from shardlab.launch.hang_report import faulty_ranks, stuck_collectives
from shardtrace.read_profile import read_profile
from shardtrace.timeline import Timeline, union

FOLDER = Path(os.environ.get("SHARDLAB_GPU_ARTEFACTS") or Path(__file__).parents[4] / "shared" / "gpu")
pytestmark = pytest.mark.skipif(
    not (FOLDER / "answers.json").exists(),
    reason=f"needs the traces and dumps of real GPU jobs: SHARDLAB_GPU_ARTEFACTS must name their folder, not {FOLDER}",
)
BY_DAY = ("ddp_2xA100_torch2.4", "inference_rank0_of_8xB200", "single_H100")
BY_DAY += ("megatron_tp8_rank0_of_8xA100", "torchrec_ddp_rank0_of_4xV100")
BY_NIGHT = ["dlrm_rank0_of_16xA100", "many_all_reduces_rank1_of_2xV100", "ddp_rank0_of_8xMI300X"]
BY_NIGHT += [f"megatron_tp8_rank{rank}_of_8xA100" for rank in range(1, 8)]
BY_NIGHT += [f"torchrec_ddp_rank{rank}_of_4xV100" for rank in range(1, 4)]
PROFILES = [*BY_DAY, *(pytest.param(name, marks=pytest.mark.night) for name in BY_NIGHT)]
UNKNOWN = ("unknown", "send or all_to_all")  # in the answers: collectives of which the trace tells no kind
FAULTY = {"gpu_error_1st": [12, 14], "lock_gil_1st": [9, 14]}  # fault_injection.log


def answer(name: str) -> dict:
    return json.loads((FOLDER / "answers.json").read_text())[f"{name}.json.gz"]


def timeline_of(name: str) -> Timeline:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "these kernels seem to communicate")
        return read_profile(FOLDER / "kineto" / f"{name}.json.gz")


def close_to(ms: float):
    return pytest.approx(ms, rel=0.01, abs=0.002)


@pytest.mark.parametrize("name", PROFILES)
def test_times_kinds_and_bytes(name):
    t, right = timeline_of(name), answer(name)
    busy = union((s.start_s, s.end_s) for s in t.spans if s.lane in ("compute", "copy"))
    assert t.compute_s * 1e3 == close_to(right["kernels_ms"])
    assert sum(end - start for start, end in busy) * 1e3 == close_to(right["kernels_or_copies_ms"])
    assert t.communication_s * 1e3 == close_to(right["communication_ms"])
    assert t.exposed_s * 1e3 == close_to(right["exposed_from_kernels_ms"])
    overlap = right["overlap_share_of_communication_kernels_only"] or 0.0
    assert t.overlapped_s * 1e3 == pytest.approx(overlap * right["communication_ms"], rel=0.01, abs=0.02)
    shapes = right.get("bytes_by_c10d_shapes", {})
    kinds = {"other" if kind in UNKNOWN else kind: of_kind for kind, of_kind in right["kinds"].items()}
    assert {s.name for s in t.lane("link")} == set(kinds)
    for kind, of_kind in kinds.items():
        found = [s for s in t.lane("link") if s.name == kind]
        assert len(found) == of_kind["count"]
        assert t.time_of(kind) * 1e3 == close_to(of_kind["total_ms"])
        assert t.exposed_of(kind) * 1e3 == close_to(of_kind["exposed_from_kernels_ms"])
        n_bytes = of_kind.get("unsharded_bytes_of_those_with_metadata", shapes.get(kind, {}).get("bytes"))
        assert n_bytes is None or sum(s.bytes for s in found) == pytest.approx(n_bytes, rel=0.01)


@pytest.mark.parametrize(("name", "unlabelled"), [("ddp_2xA100_torch2.4", 6), ("torchrec_ddp_rank0_of_4xV100", 15)])
def test_every_step_has_its_buckets_and_its_phases(name, unlabelled):
    """Three steps, recorded on another machine, long ago: on this one's clock the times are negative."""
    t = timeline_of(name)
    units = Counter(s.unit for s in t.lane("link"))
    assert units == {"": unlabelled} | {f"bucket {i}": 3 for i in range(5)}
    assert {"forward", "backward", "optimizer"} <= {s.name for s in t.lane("compute")}


def test_a_multimem_all_reduce_is_warned_of():
    with pytest.warns(UserWarning, match="73 x multimem_all_reduce_kernel"):
        read_profile(FOLDER / "kineto" / "inference_rank0_of_8xB200.json.gz")


def test_gloo_on_one_of_300_ranks():
    t, right = timeline_of("gloo_rank34_of_300"), answer("gloo_rank34_of_300")["all_reduce"]
    assert t.rank == 34
    assert Counter(s.name for s in t.lane("link")) == {"all_reduce": right["count"]}
    assert t.communication_s * 1e3 == close_to(right["total_ms"])
    assert sum(s.bytes for s in t.lane("link")) == right["bytes"]


@pytest.mark.night
@pytest.mark.parametrize("name", ["old_format_a_list", "old_format_capital_categories"])
def test_torch_1_8s_formats_are_refused(name):
    with pytest.raises(ValueError, match=r"no trace of torch\.profiler|of another profiler"):
        read_profile(FOLDER / "kineto" / f"{name}.json.gz")


@pytest.mark.parametrize("incident", FAULTY)
def test_the_ranks_in_which_a_fault_was_injected_are_named(incident):
    logs = {rank: read_dump(FOLDER / "flight_recorder" / incident / f"_dump_{rank}") for rank in range(16)}
    assert faulty_ranks(logs) == FAULTY[incident]
    text = stuck_collectives(logs)
    assert "called nothing" not in text
    assert len(text.splitlines()) < 15
    advice = {"gpu_error_1st": "Look at the GPU of ranks 12, 14:", "lock_gil_1st": "Look at ranks 9, 14:"}
    assert f"Over all groups: {advice[incident]}" in text
