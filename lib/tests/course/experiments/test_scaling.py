"""Scaling efficiency: known answers from made-up times; on ranks, what sleep, Amdahl and the network make of it."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardcourse.experiments import scaling as module
from shardcourse.experiments.scaling import efficiencies, scaling
from shardsim import simulated
from shardsim.network import Network
from shardsim.slept_computation import sleep_in

SLOW = "100 Mb/s, 1 ms"  # so slow that this machine's own time is small beside it
MESSAGE_BYTES = 1_000_000
COMPUTE_S, OVERHEAD_S = 0.1, 0.06


def test_weak_scaling_of_made_up_times():
    """Two ranks, twice the tokens, in 1.25 times the time: 1.6 times the throughput, of the 2 that it could be."""
    one, two, four = efficiencies({1: [1.0] * 7, 2: [1.25] * 7, 4: [2.0] * 7}, {1: 100, 2: 200, 4: 400})
    assert (one.ranks, one.step_s, one.tokens_per_second) == (1, 1.0, 100.0)
    assert (one.efficiency, one.low, one.high, one.confidence) == (1.0, 1.0, 1.0, 1.0)
    assert (two.ranks, two.step_s, two.tokens_per_second) == (2, 1.25, 160.0)
    assert (two.efficiency, two.low, two.high) == pytest.approx((0.8, 0.8, 0.8))
    assert (four.tokens_per_second, four.efficiency) == pytest.approx((200.0, 0.5))


def test_strong_scaling_of_made_up_times():
    """Amdahl: with a fifth of the step that does not shrink, N ranks take 0.2 + 0.8 / N."""
    times = {n: [0.2 + 0.8 / n] * 3 for n in (1, 2, 4, 8)}
    found = {row.ranks: row.efficiency for row in efficiencies(times, dict.fromkeys(times, 100))}
    assert found == pytest.approx({1: 1.0, 2: 1 / 1.2, 4: 1 / 1.6, 8: 1 / 2.4})


def test_rounds_are_compared_with_themselves():
    """The machine gets 100 times slower from round to round; each round's own ratio is what counts."""
    shares, alone = [0.81, 0.75, 0.8, 0.4, 0.85, 0.79, 0.9], [1.0, 100.0, 3.0, 20.0, 0.5, 7.0, 2.0]
    _, two = efficiencies({1: alone, 2: [t / e for t, e in zip(alone, shares, strict=True)]}, {1: 1, 2: 2})
    assert two.efficiency == pytest.approx(0.8)
    assert (two.low, two.high) == pytest.approx((0.4, 0.9))
    assert two.confidence == 1 - 2 / 2**7, "that the median of 7 is outside of them all: 7 heads, or 7 tails"


def test_few_rounds_are_not_called_sure():
    assert [row.confidence for row in efficiencies({1: [1.0], 4: [1.0]}, {1: 1, 4: 4})] == [1.0, 0.0]
    assert efficiencies({1: [1.0] * 3, 4: [1.0] * 3}, {1: 1, 4: 4})[1].confidence == 0.75


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({2: [1.0], 4: [1.0]}, r"times of 1 are missing, there are \[2, 4\]"),
        ({1: [1.0, 1.0], 2: [1.0]}, r"one time a round, not \{1: 2, 2: 1\}"),
        ({1: [], 2: []}, "one time a round"),
        ({1: [1.0], 2: [0.0]}, "more than 0 seconds"),
    ],
)
def test_times_that_tell_nothing_are_refused(times, message):
    with pytest.raises(ValueError, match=message):
        efficiencies(times, dict.fromkeys(times, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_sizes": (2, 4)}, r"add 1 to world_sizes=\(2, 4\)"),
        ({"world_sizes": ()}, "add 1 to world_sizes"),
        ({"world_sizes": (1, 0)}, "world_size must be at least 1, not 0"),
        ({"mode": "medium"}, '"weak" .* or "strong" .* not \'medium\''),
        ({"mode": "strong", "world_sizes": (1, 2, 3, 5)}, r"4 sequences can't be shared by \[3, 5\] ranks"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seq_len": 0}, "seq_len must be at least 1"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is_launched(options, message, monkeypatch):
    monkeypatch.setattr(module, "launch", None)
    sizes = {"batch_size": options.pop("batch_size", 4), "seq_len": options.pop("seq_len", 8)}
    with pytest.raises(ValueError, match=message):
        scaling(lambda batch_size: None, **sizes, **options)


class FakeLaunch:
    """One rank takes 1 s for each sequence, plus half a second if it isn't alone."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, fn, world_size, make_step, sequences, steps, warmup, **options) -> list[float]:
        self.calls.append((world_size, sequences, options))
        return [sequences + 0.5 * (world_size > 1)] * world_size


@pytest.mark.parametrize(
    ("mode", "sequences", "efficiency"), [("weak", [8, 8, 8], 8 / 8.5), ("strong", [8, 4, 2], 8 / (4 * 2.5))]
)
def test_every_round_measures_all_in_turn(monkeypatch, mode, sequences, efficiency):
    fake = FakeLaunch()
    monkeypatch.setattr(module, "launch", fake)
    found = scaling(None, 8, 16, mode=mode, rounds=3, network="{} ranks".format, device="cpu")
    assert [n for n, *_ in fake.calls] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert [each for _, each, _ in fake.calls[:3]] == sequences
    assert all(options == {"network": f"{n} ranks", "device": "cpu"} for n, _, options in fake.calls)
    assert found[4].efficiency == pytest.approx(efficiency)
    assert found[4].tokens_per_second == pytest.approx(4 * sequences[-1] * 16 / found[4].step_s)


def test_warm_up_does_not_count(monkeypatch):
    seconds = iter([90.0, 50.0, 1.0, 2.0, 30.0])
    monkeypatch.setattr(module, "time_step", lambda step: next(seconds))
    assert module._timed(lambda sequences: int, 1, steps=3, warmup=2) == 2.0


def test_it_reads_as_a_table(monkeypatch):
    monkeypatch.setattr(module, "launch", FakeLaunch())
    title, header, *rows = str(scaling(None, 8, 16, rounds=6)).splitlines()
    assert title == "weak scaling, 8 x 16 tokens a rank, 6 rounds"
    assert header.split() == ["ranks", "step", "ms", "tokens/s", "efficiency"]
    assert [row.split()[:4] for row in rows] == [
        ["1", "8000.0", "16", "1.00"],
        ["2", "8500.0", "30", "0.94"],
        ["4", "8500.0", "60", "0.94"],
    ]
    assert "(0.94 to 0.94, 97% sure)" in rows[-1]


# ------------------------------------------------------------------------------------------------------------ on ranks


def all_reduce_after_sleep(sequences: int):
    """No overlap: what a step takes is the sum of the two."""
    gradients = torch.zeros(MESSAGE_BYTES // 4)

    def step() -> None:
        time.sleep(COMPUTE_S)
        dist.all_reduce(gradients)

    return step


def sleep_and_overhead(sequences: int):
    return lambda: time.sleep(OVERHEAD_S + sequences * 0.03)


def ddp(sequences: int):
    """A small model whose computation is slept, as a lesson has it."""
    model = nn.Linear(64, 64)
    sleep_in(model, 0.03 * sequences, 0.06 * sequences)
    module = DistributedDataParallel(model)
    return lambda: module(torch.ones(sequences, 64)).sum().backward()


def on_ranks(make_step, batch_size, **options):
    options = {"world_sizes": (1, 2, 4), "rounds": 2, "steps": 3, "device": "cpu"} | options
    return scaling(make_step, batch_size, 16, **options)


@pytest.mark.alone
def test_on_a_slow_link_efficiency_is_what_the_formula_leaves():
    found = on_ranks(all_reduce_after_sleep, 1, network=simulated(SLOW))
    for n in (2, 4):
        communication_s = Network.parse(SLOW, n).seconds("all_reduce", MESSAGE_BYTES, range(n))
        expected = COMPUTE_S / (COMPUTE_S + communication_s)
        assert found[n].efficiency == pytest.approx(expected, rel=0.15)
    assert found[4].efficiency < found[2].efficiency < 0.65
    assert found[4].low <= found[4].efficiency <= found[4].high


@pytest.mark.alone
def test_where_communication_is_free_ranks_that_sleep_scale():
    found = on_ranks(ddp, 1, network=simulated("infinitely fast"))
    assert found[4].efficiency == pytest.approx(1.0, abs=0.15)


@pytest.mark.alone
def test_strong_scaling_pays_for_what_does_not_shrink():
    """0.06 + 4 x 0.03 s alone, 0.06 + 0.03 s for four: half of what four ranks could do."""
    found = on_ranks(sleep_and_overhead, 4, mode="strong")
    assert found[2].efficiency == pytest.approx(0.18 / (2 * 0.12), rel=0.1)
    assert found[4].efficiency == pytest.approx(0.18 / (4 * 0.09), rel=0.1)


def test_a_step_on_ranks_takes_as_long_as_its_slowest_rank_and_is_no_faster_than_it_sleeps():
    """By day: no more than is true on a busy machine, too."""

    def step(sequences: int):
        sleep_s = 0.02 * sequences * (1 + 2 * (dist.get_rank() == 1))
        return lambda: time.sleep(sleep_s)

    found = on_ranks(step, 1, world_sizes=(1, 2), rounds=1, steps=2)
    assert found[1].step_s >= 0.02 and found[2].step_s >= 0.06
    assert found[1].tokens_per_second == pytest.approx(16 / found[1].step_s)
    assert found[2].tokens_per_second == pytest.approx(2 * 16 / found[2].step_s)
    assert found[2].efficiency == pytest.approx(found[1].step_s / found[2].step_s) and found[1].efficiency == 1


def no_step(sequences: int):
    return sequences


def test_what_is_no_step_is_named():
    with pytest.raises(Exception, match=r"TypeError: make_step\(batch_size\) must return a function .* not 4"):
        on_ranks(no_step, 4)
