"""A measured run teaches what the plan can't know of a machine; other plans on that machine then follow it."""

from dataclasses import replace

import pytest

from shardplan.api import figures_of, setup_of
from shardplan.calibration import as_before, learn, read
from shardplan.memory.allocator import WORST
from shardplan.planned_job import Setup
from shardplan.records import Plan

GIB = 1 << 30
SETUP = setup_of("llama-3.1-8b", "H100", 8, recompute="full", seq_len=4096)
OTHER = setup_of("1B", "H100", 16, seq_len=1024, accumulation=4)


def on_a_machine(setup: Setup, pace: float = 1.0, reserve: float | None = None, extra: float = 0.0) -> Setup:
    """The setup where all computing has this pace, and so much memory is in use."""
    return replace(setup, machine=as_before(setup.machine, {"pace": pace, "reserve": reserve, "extra": extra}))


def measured(plan: Plan) -> dict[str, float]:
    return {"tokens_per_s": plan.speed.tokens_per_s, "memory": plan.memory.device_bytes[0]}


@pytest.mark.parametrize(
    ("pace", "reserve", "extra"),
    [(0.7, 1.08, 0.0), (1.3, 1.0, 0.0), (0.4, WORST, 3.1 * GIB), (1.0, 1.0, -2.0 * GIB)],
)
def test_a_run_on_another_machine_tells_how_that_machine_is(pace, reserve, extra):
    run = figures_of(on_a_machine(SETUP, pace, reserve, extra))
    learnt = learn(SETUP, measured(run))
    machine = learnt.setup.machine
    assert machine.gpu.pace == pytest.approx(pace, rel=0.001)
    assert machine.reserve == pytest.approx(reserve, rel=0.001)
    assert machine.extra_bytes == pytest.approx(extra, abs=0.001 * GIB)
    forecast, truth = (
        figures_of(on) for on in (replace(OTHER, machine=machine), on_a_machine(OTHER, pace, reserve, extra))
    )
    assert forecast.speed.tokens_per_s == pytest.approx(truth.speed.tokens_per_s, rel=0.001)
    assert forecast.memory.device_bytes == pytest.approx(truth.memory.device_bytes, rel=0.001)


def test_without_a_measurement_nothing_changes():
    assert learn(SETUP, {}).setup == SETUP and not learn(SETUP, {}).words


def test_what_was_learnt_is_said_in_plain_words_with_the_figures():
    run = figures_of(on_a_machine(SETUP, 0.5, WORST, 3.1 * GIB))
    memory, speed, kept = learn(SETUP, measured(run)).words
    assert memory.startswith("3.10 GiB more than counted")
    assert speed == (
        f"your GPUs sustain {run.speed.hfu:.0%} of their peak; planned were {figures_of(SETUP).speed.hfu:.0%}. "
        "Computing takes 2.00 times as long as planned."
    )
    assert kept == "for other plans on this machine, add --measured pace=0.5 reserve=1.21 extra=3.1GiB"
    again = learn(SETUP, read(kept.split("--measured ")[1].split())).setup
    assert figures_of(again).speed.tokens_per_s == pytest.approx(run.speed.tokens_per_s, rel=0.01)
    assert figures_of(again).memory.device_bytes == pytest.approx(run.memory.device_bytes, rel=0.01)


def test_the_whole_job_and_what_torch_counts_may_be_given_instead():
    run = figures_of(on_a_machine(SETUP, 0.7, 1.1))
    reserved = run.memory.reserved_bytes[0] + run.memory.workspaces_bytes  # torch counts them too
    learnt = learn(SETUP, {"job_tokens_per_s": run.job_tokens_per_s, "reserved": reserved})
    assert learnt.setup.machine.gpu.pace == pytest.approx(0.7, rel=0.001)
    assert learnt.setup.machine.reserve == pytest.approx(1.1, rel=0.001)
    planned = figures_of(SETUP).memory
    more = learn(SETUP, {"allocated": planned.max_memory_allocated + 2 * GIB})
    assert more.words[0] == "tensors take 2.00 GiB more than counted."
    assert figures_of(more.setup).memory.device_bytes[0] == pytest.approx(planned.device_bytes[0] + 2 * GIB)


@pytest.mark.parametrize("wanted", [10.0, 1e5, 1e9])
def test_a_speed_that_can_t_be_is_refused_with_the_nearest_that_can(wanted):
    with pytest.raises(ValueError, match="tokens_per_s=") as error:
        learn(SETUP, {"tokens_per_s": wanted})
    name, value = str(error.value).split("nearest")[1].split("tokens_per_s=")
    nearest = float(value.split(",")[0])
    assert learn(SETUP, {("job_" if name.endswith("job_") else "") + "tokens_per_s": nearest}).words


def test_bytes_have_units():
    assert read(["memory=61", "reserved=60GiB", "allocated=61,000MiB", "extra=1.5GB", "tokens_per_s=5.2e3"]) == {
        "memory": 61 * GIB, "reserved": 60 * GIB, "allocated": 61_000 << 20, "extra": 1.5e9, "tokens_per_s": 5200,
    }  # fmt: skip
