"""Newer options that a search proposes: products in fp8, async tensor parallelism, zero-bubble schedules, activations
on the host.

Each would multiply the strategies of a search, so they are tried on a few of its plans only: the fastest of all, the
fastest with tensor parallelism, and the fastest with a pipeline. An option is kept if the card has it, its plan fits,
and it makes that plan faster. Options that were kept are also tried together, with products in fp8 and without.

Source for what the hardware must have: pytorch/torchtitan, docs/float8.md (products in fp8 need torch.compile, and
Hopper or newer); Liang et al. 2024, "Introducing async tensor parallelism in PyTorch" (all ranks joined by NVLink).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardplan.formatting import percent, seconds
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.speed import speed_plan
from shardplan.speed.async_tensor import hidden_s
from shardplan.speed.micro_batch import messages_s

LEAST_GAIN = 0.02  # of speed
MOST = 3  # proposals


@dataclass(frozen=True)
class Proposal:
    """A plan faster than the search's best. `options`: what it has that the search did not try, each with a reason."""

    plan: Plan
    gain: float  # over the search's best plan
    options: dict[str, str]  # "async_tensor=True": "12% of the step waited for messages ..., now 4%"


@dataclass(frozen=True)
class Option:
    fields: dict
    reason: Callable[[Plan, Plan], str]  # of the plans without and with it
    applies: Callable[[Setup], bool]

    @property
    def words(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.fields.items())


def proposals(fitting: Sequence[Plan], fixed: dict) -> tuple[Proposal, ...]:
    """Return the fastest proposals, the fastest first, with one that rounds as the search's plans do if there is one.

    `fitting`: a search's plans; `fixed`: fields that stay.
    """
    found: dict[Setup, Proposal] = {}
    for start in _starts(fitting):
        for proposal in _of_start(start, fitting[0], fixed):
            found.setdefault(proposal.plan.setup, proposal)
    ranked = sorted(found.values(), key=lambda p: -p.gain)
    shown = ranked[: MOST - 1]
    alike = [p for p in ranked if p.plan.setup.strategy.products == fitting[0].setup.strategy.products]
    return tuple(shown + [p for p in alike[:1] if not any(p is other for other in shown)])


def _starts(fitting: Sequence[Plan]) -> list[Plan]:
    """Return the fastest plan, and the fastest for which each option of a parallelism exists."""
    has = (
        lambda s: True,
        lambda s: s.tensor > 1,
        lambda s: s.pipeline > 1 and s.accumulation > 1 and s.virtual_stages == 1,
    )
    found = [next((plan for plan in fitting if of(plan.setup.strategy)), None) for of in has]
    return list({id(plan): plan for plan in found if plan}.values())


def _of_start(start: Plan, best: Plan, fixed: dict) -> Iterator[Proposal]:
    kept: list[tuple[Option, Plan]] = []
    for option in OPTIONS:
        contradicts = any(fixed.get(name, value) != value for name, value in option.fields.items())
        if contradicts or not option.applies(start.setup):
            continue
        plan = _with(start, option.fields)
        if plan and _gain(plan, start) > LEAST_GAIN:
            kept.append((option, plan))
    for option, plan in kept:
        yield from _proposed(best, plan, [(option, start, plan)])
    for of in (kept, [(option, plan) for option, plan in kept if "products" not in option.fields]):
        together = _best_of_each_field(of)
        fields = {name: value for option, _ in together for name, value in option.fields.items()}
        plan = _with(start, fields) if len(together) > 1 else None
        if plan:
            yield from _proposed(best, plan, [(option, start, alone) for option, alone in together])


def _proposed(best: Plan, plan: Plan, why: list[tuple[Option, Plan, Plan]]) -> Iterator[Proposal]:
    gain = _gain(plan, best)
    if gain > LEAST_GAIN:
        yield Proposal(plan, gain, {option.words: option.reason(before, after) for option, before, after in why})


def _best_of_each_field(kept: list[tuple[Option, Plan]]) -> list[tuple[Option, Plan]]:
    """Return options that set different fields, the fastest first."""
    chosen: list[tuple[Option, Plan]] = []
    for option, plan in sorted(kept, key=lambda of: -of[1].job_tokens_per_s):
        if not any(set(option.fields) & set(other.fields) for other, _ in chosen):
            chosen.append((option, plan))
    return chosen


def _with(start: Plan, fields: dict) -> Plan | None:
    """Plan a start with these fields; None if they do not go together, or the plan does not surely fit."""
    try:
        setup = replace(start.setup, strategy=replace(start.setup.strategy, **fields))
    except ValueError:
        return None
    plan = Plan(setup, memory_plan(setup, every_block=False), None)
    return replace(plan, speed=speed_plan(setup)) if plan.fits == "yes" else None


def _gain(plan: Plan, over: Plan) -> float:
    return plan.job_tokens_per_s / over.job_tokens_per_s - 1


def _of_a_step(plan: Plan, part: str) -> str:
    return percent(plan.speed.parts_s[part] / plan.speed.step_s)


def _computes_less(before: Plan, after: Plan) -> str:
    took, takes = (seconds(plan.speed.parts_s["computation"]) for plan in (before, after))
    compiled = "" if before.setup.strategy.compile else ", compiled,"
    return f"in 8 bits{compiled} a step computes for {takes} and not for {took}; products round more"


def _hides(before: Plan, after: Plan) -> str:
    hidden, waits = sum(hidden_s(after.setup)), sum(messages_s(before.setup, False))
    waited = _of_a_step(before, "exposed communication")
    return f"{percent(hidden / waits)} of a block's messages hide behind its products; {waited} of a step waited"


def _fills(before: Plan, after: Plan) -> str:
    was, is_now = (_of_a_step(plan, "bubble") for plan in (before, after))
    checks = "; norms are checked after the update" if after.setup.strategy.schedule == "zb-h2" else ""
    return f"the weights' gradients fill the bubble: {is_now} of a step and not {was}{checks}"


def _moves_away(before: Plan, after: Plan) -> str:
    was, is_now = (percent(1 - plan.speed.mfu / plan.speed.hfu) for plan in (before, after))
    return f"activations wait on the host, so recomputation is {is_now} of the work and not {was}"


def _has_fp8(setup: Setup) -> bool:
    return "fp8" in setup.machine.gpu.flops and setup.strategy.products == "compute"


def _has_async_tensor(setup: Setup) -> bool:
    return setup.strategy.tensor > 1 and setup.machine.gpu.link.startswith("NVLink")


def _fp8(more: dict, applies: Callable[[Setup], bool] = lambda setup: True) -> Option:
    fields = {"products": "fp8", "compile": True} | more
    return Option(fields, _computes_less, lambda setup: _has_fp8(setup) and applies(setup))


def _zero_bubble(name: str) -> Option:
    return Option({"schedule": name}, _fills, lambda setup: setup.strategy.pipeline > 1)


def _offloaded(recompute: str) -> Option:
    fields = {"offload_activations": True, "recompute": recompute}
    return Option(fields, _moves_away, lambda setup: setup.strategy.recompute not in ("none", recompute))


OPTIONS = (
    _fp8({}),
    _fp8({"gather": "fp8"}, lambda setup: setup.strategy.sharded[0] and setup.strategy.tensor == 1),
    Option({"async_tensor": True}, _hides, _has_async_tensor),
    *map(_zero_bubble, ("zb-h1", "zb-h2")),
    *map(_offloaded, ("none", "selective")),
)
