"""What lesson 6b runs: FSDP1's switches beside their replacements, timed steps, and jobs with a problem to find."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from shardcourse.exercises.job_check import JOBS, check_find_problems
from shardcourse.experiments import timed_fsdp
from shardcourse.experiments.fsdp_switches import compare_switches, fsdp2, no_backward_prefetch, switch_table
from shardlab import launch


def test_each_switch_and_its_replacement_train_the_same_and_send_as_much():
    found = launch(compare_switches, 4, device="cpu", stream=False)[0]
    for name, (_, old, new) in found.items():
        assert old[0] == pytest.approx(new[0], abs=1e-3), name
        assert old[2] == pytest.approx(new[2], rel=1e-4), name  # the norm's message differs by some bytes
        assert old[1] == new[1] or name == "NO_SHARD"  # DDP packs gradients into other messages
    assert " AR | " in switch_table(found) and switch_table(found).count("equal") == len(found)


def test_messages_of_a_timed_step_are_sent_in_the_predicted_order():
    def orders() -> list:
        return [sent(timed_fsdp.timed_step(shard, rounds=1)) for shard in (fsdp2, no_backward_prefetch)]

    def sent(step):
        link = sorted((s for s in step.spans if s.lane == "link"), key=lambda s: s.start_s)
        return [(s.name, s.unit) for s in link]

    found = launch(orders, 4, device="cpu", network=timed_fsdp.NETWORK, stream=False)[0]
    predicted = [sent(timed_fsdp.predicted_step(backward_prefetch=n)) for n in (1, 0)]
    assert found == predicted and predicted[0] != predicted[1]


def right(model, optimizer) -> list[str]:
    own = {id(p) for p in model.parameters()}
    units = [m for m in model.modules() if isinstance(m, FSDPModule)]
    inner = {id(p) for unit in units if unit is not model for p in unit.parameters()}
    total, of_root = (sum(p.numel() for p in model.parameters() if id(p) not in left_out) for left_out in ((), inner))
    bad = sum((~torch.isfinite(p.to_local() if isinstance(p, DTensor) else p)).sum() for p in model.parameters())
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    found = {
        "plain parameter": not all(isinstance(p, DTensor) for p in model.parameters()),
        "old optimizer": not all(id(p) in own for group in optimizer.param_groups for p in group["params"]),
        "not finite": bad.item() > 0,
        "large root": of_root > total / 2,
    }
    return [problem for problem, yes in found.items() if yes]


def only_its_own_shard(model, optimizer) -> list[str]:
    """Like `right`, but a rank looks at its own shards only."""
    found = [problem for problem in right(model, optimizer) if problem != "not finite"]
    shards = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return found + ["not finite"] * (not all(torch.isfinite(shard).all() for shard in shards))


def blind(model, optimizer) -> list[str]:
    return []


def test_the_exercise_knows_right_from_wrong():
    assert check_find_problems(right, "cpu").startswith(f"right: {len(JOBS)} jobs")
    assert check_find_problems(lambda model, optimizer: None, "cpu") == "find_problems is not written yet"
    assert check_find_problems(only_its_own_shard, "cpu").startswith("job not_initialised_on_rank_2, rank 0: expected")
    assert check_find_problems(blind, "cpu").startswith("job root_forgotten, rank 0: expected ['plain parameter']")
