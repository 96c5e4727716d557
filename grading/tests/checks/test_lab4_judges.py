"""Lab 4's judges alone, on what ranks might reply: each bound from both sides, and each rank."""

from types import SimpleNamespace

import pytest
from submissions import judge_replies

from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.checks.lab4_fsdp import (
    fault_in_gradients_and_steps,
    judge_peak_and_losses,
    judge_sharded_units_recompute,
    judge_speed,
    on_ranks,
    unit_messages,
)
from grading.checks.lab4_fsdp.gradients_and_steps_on_ranks import FREQUENCIES, SCALES
from grading.checks.lab4_fsdp.unit_messages import Message
from grading.judge.timed_laps import Lap
from grading.judge.timing_verdict import Timing
from shardlab.tier import TIERS

MIB = 2**20
UNITS = judge_sharded_units_recompute.units_due("cpu", 1)

# What is learnt


def learnt(**changes) -> dict:
    """A rank's quarter of right gradients, or of others; and a right optimizer, or another."""
    waves = [[(1.0 + i + k) / 4 for k in range(FREQUENCIES)] for i in (0, 1)]
    gradients = [{"waves": w, "squares_of_norms": 0.25, "elements": 250} for w in waves]
    names = ("weights", "matrix products", "gradients", "optimizer states")
    right = {
        "gradients": gradients,
        "without_gradient": [],
        "not_trained": [],
        "optimizer": "torch.optim.adamw.AdamW",
        "is_adamw": True,
        "settings": [],
        "step_errors": [0.0] * len(SCALES),
        "dtypes": dict.fromkeys(names, ["torch.float32"]) | {"messages": ["Float", "Long"]},
    }
    return right | changes


def times(factor: float, batch: int, what="waves") -> dict:
    """The gradients of one batch so many times as large."""
    gradients = learnt()["gradients"]
    found = gradients[batch][what]
    gradients[batch][what] = [factor * x for x in found] if what == "waves" else factor * found
    return {"gradients": gradients}


def fault(**changes) -> str:
    """The words on a last rank that replies otherwise; the others are right, or all are if gradients differ."""
    everywhere = {"gradients": changes["gradients"]} if "gradients" in changes else {}
    replies = [learnt(**everywhere) for _ in range(3)] + [learnt(**changes)]
    session = SimpleNamespace(
        tier=TIERS["cpu"],
        seed=1,
        order=lambda *_, **__: replies,
        order_reference=lambda *_, **__: [_whole()] * 4,
    )
    return fault_in_gradients_and_steps.fault(session, "lab4.fits", 1)


def _whole() -> dict:
    """DDP's: each rank has the whole gradient."""
    gradients = learnt()["gradients"]
    return {
        "gradients": [
            {"waves": [4 * x for x in g["waves"]], "squares_of_norms": 1.0, "elements": 1000} for g in gradients
        ]
    }


def test_right_gradients_and_steps_have_no_fault():
    assert fault() == fault(**times(1 + 1e-5, 0)) == fault(**times(1 - 1e-5, 1)) == ""
    assert fault(step_errors=[0.0, 4e-5, 0.0]) == ""
    whole = [g | {"elements": 1000, "waves": [4 * x for x in g["waves"]]} for g in learnt()["gradients"]]
    assert fault(gradients=[g | {"squares_of_norms": 1.0} for g in whole]) == "", "copies of the whole are no sum"


@pytest.mark.parametrize(
    "changes, words",
    [
        (times(4, 0), "the gradients are 4 times DDP's (their sum over ranks; DDP's are the mean)"),
        (times(0.5, 0), "the gradients are 0.5 times DDP's."),
        (times(1 + 1e-4, 0), "the gradients are 1 times DDP's"),
        (times(0.25, 1), "with a loss 64 times as large, the gradients are 0.25 times DDP's."),
        (times(0, 0), "the gradients are not DDP's"),
        (times(float("nan"), 0), "the gradients are not finite"),
        (times(1.1, 0, "squares_of_norms"), "the gradients are DDP's but for the norms'"),
        ({"without_gradient": ["norm.weight", "x"]}, "after backward norm.weight and 1 more have no gradient"),
        ({"not_trained": ["norm.weight"]}, "the optimizer does not have: norm.weight."),
        ({"is_adamw": False, "optimizer": "torch.optim.adam.Adam"}, "the optimizer is torch.optim.adam.Adam"),
        ({"settings": ["eps=1e-06 instead of 1e-08"]}, "eps=1e-06 instead of 1e-08"),
        ({"step_errors": [0.0, 0.0, 2e-4]}, "step 3 of 3 does not move the weights as AdamW would"),
        ({"step_errors": [2e-4, 0.0, 0.0]}, "step 1 of 3 does not move"),
        ({"dtypes": learnt()["dtypes"] | {"messages": ["BFloat16", "Float"]}}, "messages are in BFloat16"),
        ({"dtypes": learnt()["dtypes"] | {"weights": ["torch.bfloat16"]}}, "weights are in torch.bfloat16"),
        ({"dtypes": learnt()["dtypes"] | {"optimizer states": ["torch.float16"]}}, "optimizer states are in"),
    ],
)
def test_a_fault_on_one_rank_is_named(changes, words):
    assert words in fault(**changes)


def test_gradients_that_add_up_are_named():
    gradients = learnt()["gradients"]
    for k in range(FREQUENCIES):
        gradients[1]["waves"][k] += gradients[0]["waves"][k] / SCALES[1]
    assert "zero_grad did not clear these" in fault(gradients=gradients)


# Memory and losses


def judged_training(check="lab4.fits", losses=1.0, peak=0.0, rank=2, step=0, seen=None):
    """Of one rank one loss is so many times DDP's, and its peak so many bytes beyond the budget."""
    most = int(on_ranks.BUDGETS["cpu"] * MIB)

    def reply(r, spoilt=True):
        due = [5.0, 4.0, 3.0]
        if spoilt and r == rank:
            due[step] *= losses
        held = {"parameters": most - 1000, "activations": 1000 + int(peak if spoilt and r == rank else 0)}
        return {"losses": due, "peak": held, "where": "forward", "moments": [held]}

    mine, reference = [reply(r) for r in range(4)], [reply(r, spoilt=False) for r in range(4)]
    claimed = 4 * most
    looks = (Seen(), Seen()) if seen is None else (Seen(10**9 + claimed + int(4 * seen)), Seen(10**9 + claimed))
    learn = {"learn": [learnt() for _ in range(4)]}
    replies = {"train": mine, "seen": looks[0]} | learn, {"train": reference, "seen": looks[1]} | learn
    return judge_replies(check, *replies)


def test_a_training_fits_its_budget_and_has_ddps_losses_on_every_rank():
    for rank in range(4):
        assert judged_training(rank=rank).points == 3
        over = judged_training(peak=1, rank=rank)
        assert (over.points, "it runs out of memory: at the peak, in forward" in over.cause) == (0, True)
        for step in range(3):
            assert judged_training(losses=1.0009, rank=rank, step=step).points == 3
            other = judged_training(losses=1.0012, rank=rank, step=step)
            assert (other.points, f"the loss of step {step + 1} on rank {rank} is" in other.cause) == (0, True)
    assert judged_training(losses=float("nan")).points == 0


def test_memory_that_no_account_explains_is_no_training_within_the_budget():
    assert judged_training(seen=judge_peak_and_losses.SPARE_MEMORY - 10).points == 3
    hidden = judged_training(seen=judge_peak_and_losses.SPARE_MEMORY + 10)
    assert (hidden.points, "the system saw" in hidden.cause) == (0, True)


# Units


def messages(blocks=4, of_block=1, gathers=2, root_gathers=1, extra=()) -> list[Message]:
    """A step's messages, with `of_block` blocks in a unit."""
    n = blocks // of_block
    sent = [Message("all_gather", 4, of_block * UNITS.block_shard)] * (gathers * n)
    sent += [Message("all_gather", 4, UNITS.root_shard)] * root_gathers
    sent += [Message("reduce_scatter", 4, of_block * UNITS.block)] * n + [Message("reduce_scatter", 4, UNITS.root)]
    return [*sent, Message("all_reduce", 4, 1), *extra]


def wrong(sent: list[Message]) -> str:
    return unit_messages.wrong_sizes(sent, UNITS) or unit_messages.wrong_counts(sent, UNITS)


def test_one_unit_a_block_and_a_root_that_is_gathered_once_or_twice_are_right():
    assert wrong(messages()) == wrong(messages(root_gathers=2)) == ""
    assert unit_messages.root_again(messages(root_gathers=2), UNITS)
    assert not unit_messages.root_again(messages(), UNITS)
    padded = [m._replace(elements=m.elements + 3) for m in messages()]
    assert wrong(padded) == ""


@pytest.mark.parametrize(
    "sent, words",
    [
        (messages(of_block=2), "a unit of 1.50 MiB is more than one block"),
        (messages(gathers=1), "blocks are gathered 4 times in a step, where 8 are due"),
        (messages(gathers=3), "blocks are gathered 12 times in a step, where 8 are due"),
        (messages(root_gathers=3), "of another size than a block"),
        (messages(blocks=3), "blocks are gathered 6 times"),
        (messages(extra=[Message("all_gather", 2, UNITS.block_shard)]), "messages go among 2 ranks, where all 4"),
        (messages(extra=[Message("reduce_scatter", 4, UNITS.block)]), "reduced 5 times in a step, where 4 are due"),
        ([], "nothing is in units"),
        ([Message("all_gather", 4, 10**6), Message("reduce_scatter", 4, 10**6)], "the whole model is one unit"),
    ],
)
def test_other_units_are_named(sent, words):
    assert words in wrong(sent)


# Offload


def judged_offload(to_device=1.0, to_host=1.0, on_device=0, losses=1.0, sent=None, torchs=True):
    """In times of what is due; of one rank."""
    due = unit_messages.copied_bytes(judge_sharded_units_recompute.units_due("cpu", 1))

    def reply(*times, on_device=0, losses=1.0, sent=None, torchs=True):
        ways = {name: t * n for name, t, n in zip(("to_device", "to_host"), times, due, strict=True)}
        more = {"losses": [losses * 5.0, 4.0, 3.0], "on_device": on_device, "torchs": torchs, "finished": []}
        return ways | more | {"sent": sent or messages()}

    right = reply(1.0, 1.0)
    other = reply(to_device, to_host, on_device=on_device, losses=losses, sent=sent, torchs=torchs)
    learn = {"learn": [learnt() for _ in range(4)]}
    replies = {"offload": [right, right, other, right]} | learn, {"train": [right] * 4} | learn
    return judge_replies("lab4.offload", *replies)


def test_offloading_is_all_bytes_both_ways_and_half_of_them_is_worth_half():
    assert judged_offload().points == judged_offload(0.991, 1.009).points == 3
    for some in (judged_offload(0.98), judged_offload(to_host=0.98), judged_offload(0.5)):
        assert (some.points, "of what should cross never does" in some.cause) == (1.5, True)
    stays = judged_offload(on_device=4)
    assert (stays.points, "4 bytes of parameters and optimizer states are on the device" in stays.cause) == (1.5, True)
    for little in (judged_offload(0.49), judged_offload(to_host=0.49)):
        assert (little.points, "hardly anything" in little.cause) == (0, True)
    for much in (judged_offload(1.02), judged_offload(to_host=1.02)):
        assert (much.points, "more is copied than the shards" in much.cause) == (0, True)
    assert judged_offload(losses=1.002).points == 0


def test_offloading_is_by_block_with_fully_shard():
    assert "more than one block" in judged_offload(sent=messages(of_block=2)).cause
    assert "torch's fully_shard" in judged_offload(torchs=False).cause


# Time


def lap(mine: list[float], reference: list[float]) -> Lap:
    return Lap(0, [{"squares": x} for x in mine], 1.0, [{"squares": x} for x in reference])


def test_a_lap_on_gpus_has_the_references_gradients_in_all():
    assert judge_speed.why_other_gradients(lap([1.0, 3.0], [2.0, 2.0])) == ""
    assert "0.5 times the squares" in judge_speed.why_other_gradients(lap([1.0, 1.0], [2.0, 2.0]))  # half of the work
    assert "2 times the squares" in judge_speed.why_other_gradients(lap([4.0, 4.0], [2.0, 2.0]))  # whole on every rank
    assert "nan times" in judge_speed.why_other_gradients(lap([float("nan"), 3.0], [2.0, 2.0]))


def test_a_lap_that_is_too_quick_is_said_to_be():
    quick = Lap(0, [{"squares": 1.0, "slept": [6, 6]}] * 4, 0.1)
    assert judge_speed.why_no_work(quick) == "a timed step took 0.10 s, less than its blocks sleep: 0.54 s."


@pytest.mark.parametrize("slept, what", [([4, 6], "4 forwards"), ([6, 0], "0 backwards")])
def test_blocks_that_did_not_sleep_are_told_however_long_the_step_took(slept, what):
    long = Lap(0, [{"squares": 1.0, "slept": [12, 6]}] * 3 + [{"squares": 1.0, "slept": slept}], 9.0)
    assert judge_speed.why_no_work(long) == f"a timed step computed {what} of blocks, and it has 6."


def test_the_reference_scales_as_its_seconds_say(monkeypatch):
    timing = Timing(1.0, 0.9, 1.1, mine_s=0.5, reference_s=0.4, pairs=16)
    session = SimpleNamespace(tier=TIERS["gpu4"], watch_reference=lambda drill, **_: SimpleNamespace(replies=[0.3]))
    figures = judge_speed._throughput(session, timing)
    tokens = TIERS["gpu4"].micro_batch * TIERS["gpu4"].seq_len * 4
    assert figures["tokens a second, forward and backward"][0] == f"{tokens / 0.5:,.0f}"
    assert figures["scaling efficiency, 1 to 4 GPUs, one unit a block"][0] == "0.75"
    session.tier = TIERS["gpu1"]  # its ranks share the GPU
    assert len(judge_speed._throughput(session, timing)) == 1
