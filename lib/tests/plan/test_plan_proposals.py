"""A search proposes newer options where the hardware has them and they pay, with figures that its plans bear out."""

import re
import time
from dataclasses import replace

import pytest
from test_plan_command import run

from shardplan.api import figures_of
from shardplan.search import proposals as module
from shardplan.search.proposals import LEAST_GAIN, OPTIONS, proposals
from shardplan.search.strategies import Search, search

LONG = {"seq_len": 8192, "compile": True}


@pytest.fixture(scope="module")
def found() -> Search:
    """Of a search over few strategies: tensor parallelism and a pipeline, full or no recomputation."""
    return search("70B", "dgx-h100", gpus=64, global_batch=256, **LONG, cross_entropy="fused", norm_kernel="fused")


def options(found: Search) -> set[str]:
    return {option for p in found.proposals for option in p.options}


def test_each_proposal_fits_and_is_as_much_faster_as_it_says(found):
    assert found.proposals
    for p in found.proposals:
        again = figures_of(p.plan.setup, every_block=False)
        assert p.plan.fits == again.fits == "yes"
        assert p.gain == pytest.approx(again.job_tokens_per_s / found.best.job_tokens_per_s - 1) and p.gain > LEAST_GAIN
    gains = [p.gain for p in found.proposals]
    assert gains == sorted(gains, reverse=True)


def test_the_fastest_is_in_8_bits_and_another_rounds_as_before(found):
    first, *others = found.proposals
    assert first.plan.setup.strategy.products == "fp8"
    assert any(p.plan.setup.strategy.products == "compute" for p in others)


def test_each_option_has_a_reason_with_the_figures_of_its_plan(found):
    """Every option that pays somewhere for a start's plan is among those that were tried, with words of its own."""
    for start in module._starts(found.fitting):
        for option in OPTIONS:
            if not option.applies(start.setup):
                continue
            plan = module._with(start, option.fields)
            if plan and plan.speed.tokens_per_s > (1 + LEAST_GAIN) * start.speed.tokens_per_s:
                words = option.reason(start, plan)
                assert re.search(r"\d", words), words
                part = {"schedule": "bubble", "products": "computation"}.get(next(iter(option.fields)))
                assert not part or plan.speed.parts_s[part] < start.speed.parts_s[part]


def test_a_pipelines_bubble_is_filled_and_messages_hide():
    fixed = {"tensor": 8, "pipeline": 8, "micro_batch": 1, "sharding": "ZERO_1"} | LONG
    found = search("405B", "dgx-h100", gpus=1024, global_batch=512, **fixed)
    said = options(found)
    assert "async_tensor=True" in said and any(option.startswith("schedule='zb-") for option in said)
    reasons = {option: why for p in found.proposals for option, why in p.options.items()}
    assert re.search(r"hide behind its products; [\d.]+% of a step waited", reasons["async_tensor=True"])


def test_activations_go_to_the_host_instead_of_being_made_again():
    fixed = {"tensor": 1, "pipeline": 1, "micro_batch": 1, "products": "compute"}
    found = search("70B", "dgx-h100", gpus=64, **fixed, **LONG)
    (proposal,) = (p for p in found.proposals if p.plan.setup.strategy.offload_activations)
    (why,) = proposal.options.values()
    share = 1 - proposal.plan.speed.mfu / proposal.plan.speed.hfu
    assert f"recomputation is {module.percent(share)} of the work and not" in why


def test_only_what_the_hardware_has():
    old = search("8B", "dgx-a100", gpus=8, seq_len=8192)
    assert not any("fp8" in option for option in options(old))
    plain = {"tensor": 2, "pipeline": 1, "micro_batch": 1, "recompute": "none", "products": "compute"}
    for machine, has in (("dgx-h100", True), ("8x 4090", False)):
        found = search("1B", machine, gpus=8, seq_len=8192, **plain)
        assert found.best
        assert ("async_tensor=True" in options(found)) == has


def test_what_is_given_stays(found):
    again = proposals(found.fitting, {"products": "compute", "async_tensor": False, "schedule": "1f1b"})
    assert {p.plan.setup.strategy.products for p in again} <= {"compute"}
    assert not any(p.plan.setup.strategy.async_tensor for p in again)
    everything = {name: getattr(found.best.setup.strategy, name) for option in OPTIONS for name in option.fields}
    assert proposals(found.fitting, everything | {"recompute": "never"}) == ()


def test_an_option_that_does_not_pay_is_not_proposed(found, monkeypatch):
    monkeypatch.setattr(module, "LEAST_GAIN", 10.0)
    assert proposals(found.fitting, {}) == ()


def test_the_plans_of_the_search_stay_as_they_were(found):
    """The best is of the layouts alone: nobody gets other rounding unasked."""
    for plan in found.fitting:
        s = plan.setup.strategy
        assert (s.products, s.async_tensor, s.schedule, s.offload_activations) == ("compute", False, "1f1b", False)
    bare = replace(found, proposals=())
    assert bare.best == found.best


def test_a_search_on_a_million_gpus_takes_seconds():
    began_s = time.process_time()
    found = search("405B", "dgx-h100", gpus=1_048_576, global_batch=1_048_576, **LONG)
    assert found.best and found.proposals
    assert time.process_time() - began_s < 5


def test_the_command_shows_them():
    degrees = ("--tensor", 1, "--pipeline", 1, "--seq-len", 8192)
    shown = run("8B", "--machine", "dgx-h100", "--gpus", 8, *degrees, "--search", "--best", 1, "--compile")
    assert shown.exit_code == 0, shown.output
    assert "Faster still" in shown.output and "products='fp8'" in shown.output
