"""Lab 4's judges on the records of real ranks, and on those with one thing spoilt."""

import json

import pytest
from deadlines import deadline_s
from submissions import judge_replies

from grading.checks.lab4_fsdp import judge_sharded_units_recompute, on_ranks
from shardlab import launch

MIB = 2**20


@pytest.fixture(scope="module")
def accounts():
    """What four ranks reply of FSDP by block, and of torch's DDP; of models as deep as the tier's."""
    of_ranks = launch(_accounts, 4, on_ranks.by_block, on_ranks.ddp, device="cpu", timeout_s=deadline_s(90))
    named = {name: [found[i] for found in of_ranks] for i, name in enumerate(("by block", "ddp"))}
    for replies in named.values():
        for reply in replies:
            reply["finished"] = []  # the references are the grader's own, of course
    return named


def _accounts(*implementations):
    return [on_ranks.record_step(each, tier="cpu", seed=1, depth=1) for each in implementations]


def test_only_what_is_sharded_by_block_with_torchs_engine_is(accounts):
    right = accounts["by block"]
    assert judge_replies("lab4.sharded", {"record_step": right}).points == 3
    assert judge_replies("lab4.units", {"record_step": right}).points == 3
    replicated = judge_replies("lab4.sharded", {"record_step": accounts["ddp"]})
    assert (replicated.points, "the parameters are not sharded" in replicated.cause) == (0, True)
    assert judge_replies("lab4.units", {"record_step": accounts["ddp"]}).points == 0
    for own, words in (
        ({"torchs": False}, "this lab is about torch's own engine"),
        ({"finished": ["shardlab.fsdp"]}, "it uses shardlab.fsdp, which is finished"),
    ):
        other = judge_replies("lab4.sharded", {"record_step": [*right[:3], right[3] | own]})
        assert (other.points, words in other.cause) == (0, True)


def test_a_timed_model_is_not_the_first_of_its_program():
    def depths() -> list[int]:
        found = []

        def noted(model, lr):
            found.append(len(model.blocks))
            return on_ranks.by_block(model, lr)

        on_ranks.serve_laps = lambda address, lap: None
        on_ranks.laps(noted, "")
        return found

    assert launch(depths, 2, device="cpu")[0] == [on_ranks.OTHER_BLOCKS, on_ranks.LAP_BLOCKS]


def spoilt(replies: list[dict], change) -> list[dict]:
    """With the last rank's evidence changed."""
    copies = json.loads(json.dumps(replies))
    change(copies[-1]["evidence"])
    return copies


def test_one_rank_that_holds_or_sends_more_is_enough(accounts):
    right = accounts["by block"]

    def holds(name):
        def change(evidence):
            evidence["held"]["between"][name] = int(1.5 * evidence["held"]["between"].get(name, 0)) + 10**6

        return judge_replies("lab4.sharded", {"record_step": spoilt(right, change)})

    assert (holds("parameters").points, holds("optimizer_states").points, holds("other").points) == (0, 0, 0)
    assert "optimizer holds more than its share" in holds("optimizer_states").cause

    def whole(evidence):
        evidence["peak"]["unsharded"] *= 3

    at_once = judge_replies("lab4.units", {"record_step": spoilt(right, whole)})
    assert (at_once.points, "too much is whole at a time" in at_once.cause) == (0, True)
    ahead = [*right[:3], right[3] | {"whole_in_forward": 3 * MIB}]
    in_forward = judge_replies("lab4.units", {"record_step": ahead})
    assert (in_forward.points, "in forward 3.00 MiB are whole or on their way" in in_forward.cause) == (0, True)


def test_a_second_model_is_sharded_by_block_too(accounts):
    """What else is kept may be of the first."""
    right, ddp = (accounts[name] for name in ("by block", "ddp"))
    later = [*right[:3], right[3] | {"other": ddp[3]["other"]}]
    for check, words in (("lab4.sharded", "the parameters are not sharded"), ("lab4.units", "nothing is gathered")):
        verdict = judge_replies(check, {"record_step": later})
        assert verdict.points == 0 and f"wrong for a second, of 5 narrower blocks: {words}" in verdict.cause

    def kept(evidence):
        evidence["held"]["between"]["other"] = 10**6

    of_first = [reply | {"other": spoilt([reply["other"]], kept)[0]} for reply in right]
    assert judge_replies("lab4.sharded", {"record_step": of_first}).points == 3


def test_recomputation_costs_a_quarter_to_a_whole_forward_and_drops_a_quarter_on_every_rank(accounts, monkeypatch):
    """Return the record of a model, as if it were as deep as is asked."""
    plain = accounts["by block"]
    monkeypatch.setattr(
        judge_sharded_units_recompute,
        "_expected",
        lambda tier, depth, other=False, expected=judge_sharded_units_recompute._expected: expected(tier, 1, other),
    )
    forward = judge_sharded_units_recompute._forward_of_blocks("cpu", plain[0]["flops"])

    forward_of_other = judge_sharded_units_recompute._forward_of_blocks("cpu", plain[0]["other"]["flops"], True)

    def checkpointed(reply, forward, again, kept):
        reply["flops"] += int(again * forward)
        reply["evidence"]["peak"]["activations"] = int(kept * reply["evidence"]["peak"]["activations"])

    def judged(rank=3, again=0.5, kept=0.7, torchs=True, other=(0.5, 0.7)):
        """Other ranks compute half of a forward again and keep 0.7 of the activations."""
        copies = json.loads(json.dumps(plain))
        for r, reply in enumerate(copies):
            checkpointed(reply, forward, *((again, kept) if r == rank else (0.5, 0.7)))
            checkpointed(reply["other"], forward_of_other, *(other if r == rank else (0.5, 0.7)))
            reply["torchs"] = torchs
        return judge_replies("lab4.recompute", {"record_step": copies}, {"record_step": plain})

    assert judged().points == judged(again=1.009).points == judged(again=0.251).points == judged(kept=0.75).points == 3
    for rank in (0, 3):
        said = {
            "of activations are held at once on some rank": judged(rank, kept=0.76),
            "something is recomputed twice": judged(rank, again=1.02),
            "0.24 forwards of all blocks are computed again": judged(rank, again=0.24),
            "torch's own engine": judged(torchs=False),
            "wrong for a second, of 5 narrower blocks: 0.00 forwards": judged(rank, other=(0.0, 0.7)),
            "wrong for a second, of 5 narrower blocks: ": judged(rank, other=(0.5, 0.8)),
        }
        assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}
