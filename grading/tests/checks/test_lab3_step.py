"""Lab 3's judges of one step alone, on what ranks might reply: memory, messages, overlap; and what the ranks record."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from submissions import judge_replies
from torch import nn
from torch.optim import SGD

from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.checks.lab3_zero import judge_memory, judge_overlap, judge_traffic, on_ranks, step_and_buckets
from grading.checks.lab3_zero.collective_waits import watch_waits
from grading.checks.lab3_zero.tracked_and_untracked_tensors import Newcomers
from grading.checks.lab3_zero.updated_elements import watch_optimizers
from shardlab import launch
from shardlab.measure.memory import MemoryTracker

TIER, N = "cpu", 4
SHARES = on_ranks.shares(1, N)


@pytest.mark.parametrize("tier", on_ranks.BUDGETS)
def test_budgets_are_the_states_and_the_same_spare_on_every_tier(tier):
    """Held: weights, 2 of AdamW, 6% to spare. Peak: gradients too, and 55%, of which a bucket takes at most 9%."""
    psi = step_and_buckets.psi_bytes(tier)
    for fraction in (0.1, 0.25):
        assert on_ranks.budget_bytes(tier, "held", fraction) == pytest.approx((1.06 + 2 * fraction) * psi, rel=0.01)
        assert on_ranks.budget_bytes(tier, "peak", fraction) == pytest.approx((1.55 + 3 * fraction) * psi, rel=0.01)
    assert max(step_and_buckets.bucket_bytes(tier)) < 0.09 * psi


def test_what_is_held_and_what_is_needed_at_the_peak_are_worth_half_each():
    tier = "cpu"
    shares = on_ranks.shares(1, 4)
    fractions = [x / sum(shares) for x in shares]

    def judged(held: float, peak: float, rank: int, seen: float | None = None):
        """Of one rank, beside its budgets, in bytes. `seen`: what the system saw of a rank and nobody accounts for."""

        def reply(r):
            off = (held, peak) if r == rank else (-1, -1)
            most = [
                int(on_ranks.budget_bytes(tier, w, fractions[r]) + o)
                for w, o in zip(("held", "peak"), off, strict=True)
            ]
            return {
                "held": {"parameters": 0, "gradients": 0, "optimizer_states": most[0]},
                "peak": {"gradients": most[1], "where": "step"},
                "moments": [],
                "updates": 0,
            }

        replies = [reply(r) for r in range(4)]
        claimed = {w: sum(sum(v for k, v in r[w].items() if k != "where") for r in replies) for w in ("held", "peak")}
        more = int(4 * (seen or 0))
        mine = Seen(10**9 + claimed["peak"] + more, 10**9 + claimed["held"] + more) if seen is not None else Seen()
        of_reference = Seen(10**9 + claimed["peak"], 10**9 + claimed["held"]) if seen is not None else Seen()
        return judge_replies(
            "lab3.memory",
            {"record_step": replies, "memory": replies, "seen": mine},
            {"memory": replies, "seen": of_reference},
        )

    for rank in range(4):
        assert judged(0, 0, rank).points == 4
        assert judged(2, 0, rank).points == judged(0, 2, rank).points == 2
        assert judged(2, 2, rank).points == 0
        assert f"after a step rank {rank} holds" in judged(2, 0, rank).cause
    assert judged(0, 0, 0, seen=judge_memory.SPARE_MEMORY - 10).points == 4
    hidden = judged(0, 0, 0, seen=judge_memory.SPARE_MEMORY + 10)
    assert (hidden.points, "the system saw" in hidden.cause) == (0, True)


# Messages


def replies(change=lambda rank, passes: None) -> list[dict]:
    """Four ranks' records of a right step, in which backwards end at 100 and 200; `change` edits a rank's passes."""
    made = []
    for rank in range(N):
        passes = [
            [message("reduce_scatter", size, k) for k, size in enumerate(step_and_buckets.bucket_bytes(TIER))]
            for _ in "AB"
        ]
        passes.append([message("all_gather", size, k) for k, size in enumerate(step_and_buckets.bucket_bytes(TIER))])
        passes[2].append(message("all_reduce", 8, 50))
        change(rank, passes)
        collectives = [c | {"at": 1 + c["at"] + 100 * i} for i, sent in enumerate(passes) for c in sent]
        pieces = step_and_buckets.pieces(TIER, SHARES, rank)
        updates = sum(end - start for _, start, end in pieces)
        made.append({"collectives": collectives, "ends": [100.0, 200.0], "pieces": pieces, "in_copies": 0})
        made[-1]["updates"] = updates
    return made


def message(kind: str, n_bytes: float, at: float) -> dict:
    times = 2 if kind == "all_reduce" else 1
    return {"kind": kind, "bytes": n_bytes, "sent": times * (N - 1) / N * n_bytes, "at": float(at), "waited": math.inf}


def judged(made: list[dict]):
    return judge_replies("lab3.traffic", {"record_step": made})


@pytest.mark.parametrize("rank", range(N))
@pytest.mark.parametrize("part", range(3))
def test_each_pass_of_each_rank_has_every_bucket_once(rank, part):
    n_spare = judge_traffic.SPARE_SMALL - (part == 2)  # `step` has the norm, too
    most = (N - 1) * max(SHARES) / sum(SHARES) * step_and_buckets.psi_bytes(TIER) + judge_traffic.SPARE_BYTES * 14

    def with_(edit):
        return judged(replies(lambda r, passes: edit(passes[part]) if r == rank else None))

    def padded(sent, n_bytes):
        sent[3]["sent"] += n_bytes - sum(c["sent"] for c in sent)

    small = message("all_reduce", 256, 60) | {"sent": 0}
    assert with_(lambda sent: None).points == 2
    assert with_(lambda sent: sent.extend([small] * n_spare)).points == 2
    assert with_(lambda sent: padded(sent, most - 1)).points == 2
    said = {
        "messages of at most 256 bytes": with_(lambda sent: sent.extend([small] * (n_spare + 1))),
        "where 13 buckets would do": with_(lambda sent: sent.append(small | {"bytes": 257})),
        "times the bytes that are allowed": with_(lambda sent: padded(sent, 1.01 * most)),
        "carry": with_(lambda sent: sent.pop(0)),
        "no message": with_(lambda sent: sent.clear()),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}
    assert all(f"rank {rank}: " in v.cause for v in said.values())


def test_a_rank_updates_what_it_owns_and_nothing_else():
    def change(rank: int, **other):
        made = replies()
        made[rank] |= other
        return judged(made)

    for rank in range(N):
        (i, start, end), *others = step_and_buckets.pieces(TIER, SHARES, rank)
        n = sum(b - a for _, a, b in [(i, start, end), *others])
        for wrong in ([(i, start, end - 1), *others], [(i, start - 1, end), *others], others, []):
            verdict = change(rank, pieces=wrong)
            assert (verdict.points, f"rank {rank}'s optimizer updates" in verdict.cause) == (0, True)
        assert change(rank, pieces=[], in_copies=n, updates=n).points == 2
        assert change(rank, pieces=[], in_copies=n - 1, updates=n - 1).points == 0


def test_where_every_rank_updates_everything_no_check_of_part_2_gives_points():
    everything = step_and_buckets.n_elements(TIER)
    verdict = judged([reply | {"updates": everything} for reply in replies()])
    assert (verdict.points, "nothing is sharded" in verdict.cause) == (0, True)
    assert judged([*[reply | {"updates": everything} for reply in replies()[:3]], replies()[3]]).points == 2


# Overlap


def backward(waited: list[float], sent=(1.0, 3.0), begin: float = 0.0) -> dict:
    """Two buckets of 1000 bytes, while gradients are made at 0.1, 2 and 4, and backward ends at 5."""
    pairs = zip(sent, waited, strict=True)
    return {
        "collectives": [{"kind": "", "bytes": 1000, "at": begin + a, "waited": begin + w} for a, w in pairs],
        "gradients": [(i, begin + at) for i, at in enumerate((0.1, 2.0, 4.0))],
        "ends": [begin + 5.0],
    }


def both(first: dict, second: dict) -> dict:
    return {key: first[key] + second[key] for key in first}


def test_a_collective_counts_as_hidden_only_if_a_gradient_is_made_before_it_is_waited_for():
    assert judge_overlap.covered(backward([2.5, 4.5])) == 1.0
    assert judge_overlap.covered(backward([1.5, 3.5])) == 0.0
    assert judge_overlap.covered(backward([4.5, 3.5])) == 0.5
    assert judge_overlap.covered(backward([math.inf] * 2)) == 1.0
    assert judge_overlap.covered(backward([math.inf] * 2, sent=(4.5, 4.6))) == 0.0
    assert judge_overlap.issued_early(backward([1.5, 3.5])) == 1.0


def test_each_backward_counts_by_itself():
    right, wrong = [2.5, 4.5], [1.5, 3.5]
    assert judge_overlap.covered(both(backward(right), backward(right, begin=10))) == 1.0
    assert judge_overlap.covered(both(backward(right), backward(wrong, begin=10))) == 0.0
    assert judge_overlap.covered(both(backward(wrong), backward(right, begin=10))) == 0.0
    nothing = backward([], sent=(), begin=10)
    assert judge_overlap.covered(both(backward(right), nothing)) == 0.0


def test_a_full_bucket_is_late_if_a_later_gradient_comes_first():
    buckets, sizes = [[0], [1], [2]], [1000, 1000, 1000]
    assert judge_overlap.late_bytes(backward([9.0] * 3, sent=(1.0, 3.0, 4.5)), buckets, sizes) == [0]
    assert judge_overlap.late_bytes(backward([9.0] * 3, sent=(1.0, 4.1, 4.5)), buckets, sizes) == [1000]
    assert judge_overlap.late_bytes(backward([9.0] * 3, sent=(4.3, 4.4, 4.5)), buckets, sizes) == [2000]
    assert judge_overlap.late_bytes(backward([9.0], sent=(4.3,)), [[0, 1, 2]], [3000]) == [0]


def waited_for(how: str) -> list[bool]:
    """On a rank: of two messages, which counts as waited for, when only the second is, in this way."""
    t = [torch.ones(4) for _ in range(2)]
    with watch_waits() as waits:
        works = [dist.all_reduce(x, async_op=True) for x in t]
        if how == "ask":
            works[1].is_completed()
        elif how == "future":
            works[1].get_future()
        elif how == "wait":
            works[1].wait()
    found = [waits.of(call.begin) < math.inf for call in waits.calls]
    for work in works:
        work.wait()
    return found


@pytest.mark.parametrize("how", ["wait", "ask", "future"])
def test_every_way_to_wait_counts_for_its_own_message(how):
    assert launch(waited_for, 2, how, device="cpu", stream=False) == [[False, True]] * 2


def test_a_stream_that_waits_counts_for_all_messages(monkeypatch):
    """Stand-ins: a wait of the stream that computes, not of another."""

    class Stream:
        def wait_stream(self, other):
            pass

        wait_event = wait_stream

    computing, other = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: computing)
    with watch_waits() as waits:
        other.wait_stream(computing)
        assert not waits.everything
        computing.wait_stream(other)
        computing.wait_event(None)
    assert len(waits.everything) == 2


# What the ranks record


def test_what_an_optimizer_updates_is_known_where_it_is_a_view_of_the_weights():
    module = nn.Linear(4, 3)
    flat = module.weight.detach().view(-1)
    views = [nn.Parameter(flat[2:5]), nn.Parameter(flat[5:7]), nn.Parameter(module.bias.detach()[:1])]
    copy, unused = nn.Parameter(flat[:2].clone()), nn.Parameter(flat[9:])
    for p in (*views, copy):
        p.grad = torch.ones_like(p)
    with watch_optimizers(module) as updated:
        SGD([*views, copy, unused], lr=1.0).step()
    SGD([nn.Parameter(flat[7:])], lr=1.0).step()
    assert (updated.pieces, updated.in_copies, updated.n_elements) == ([(0, 2, 7), (1, 0, 1)], 2, 8)


def test_copies_that_no_operation_touches_count_whatever_their_dtype():
    module = nn.Linear(100, 100)
    before = torch.ones(5000)
    newcomers = Newcomers()
    with MemoryTracker(module) as tracker:
        held = [SimpleNamespace(t=torch.ones(10, dtype=dtype)) for dtype in (torch.int8, torch.float32)]
        arrays = newcomers.label(tracker)
    assert sum(tracker.resident.values()) == 4 * 10_100 + 10 + 40 + sum(a.nbytes for a in arrays)
    assert before.numel() and held
