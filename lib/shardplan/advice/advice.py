"""Advice: the cheapest changes that make a plan fit, or a step faster. A plan for each piece of advice shows the gain.

All single changes of the strategy are planned (`changes`). Of those that help, the best at each price is returned (see
`changes.PRICES`), the cheapest first. If none helps, or pairs may be cheaper, pairs are planned: to fit, two changes
that save memory; to be faster, one that would make the step faster if it fitted, and one that saves memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby, product
from operator import attrgetter

from shardplan.advice.changes import GPUS, PRICES, TRAINING, Change, single_changes
from shardplan.formatting import gib, percent
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import MemoryPlan, Plan, SpeedPlan
from shardplan.speed import speed_plan

LEAST_GAIN = 0.02  # of tokens a second: below it a plan's own error hides the difference
MOST = 3


@dataclass(frozen=True)
class Advice:
    change: Change
    plan: Plan  # with the change
    words: str  # "recompute='selective': fits, 61.2 of 80.0 GiB, 6.1% slower"
    options: str  # the same for the command line: "--recompute selective: fits, ..."


def advise(plan: Plan, most: int = MOST) -> tuple[Advice, ...]:
    """Return advice, the cheapest first: how to make the plan fit or, if it surely fits, how to make it faster."""
    tries = _tries(plan, single_changes(plan.setup))
    if plan.fits == "yes":
        found = _best_of_each_price(_faster(plan, tries) or _faster(plan, _pairs_to_speed_up(plan, tries)))
    else:
        singles = _best_of_each_price([t for t in tries if t.fits])
        dearest = singles[0].change.price if singles else len(PRICES)
        found = _worth_their_price(plan, [*_cheapest_pair_that_fits(plan, tries, dearest), *singles])
    return tuple(_advice(t.change, plan, t.plan) for t in found[:most])


def _advice(change: Change, before: Plan, after: Plan) -> Advice:
    gain = _gain(before, after)
    return Advice(change, after, f"{change.words(before.setup)}: {gain}", f"{change.options(before.setup)}: {gain}")


def _gain(before: Plan, after: Plan) -> str:
    high = after.memory.device_bytes[1]
    held = f"{gib(high, unit=False)} of {gib(after.setup.machine.memory_bytes)}"
    fits = "fits, " if before.fits != "yes" else ""
    speed = _speed(after.speed.tokens_per_s / before.speed.tokens_per_s)
    return f"{fits}{held}, {speed}"


def _speed(ratio: float) -> str:
    if abs(ratio - 1) < 0.005:
        return "as fast"
    if ratio >= 2:
        return f"{ratio:.1f} times as fast"
    return f"{percent(ratio - 1)} faster" if ratio > 1 else f"{percent(1 - ratio)} slower"


@dataclass(frozen=True)
class _Try:
    """A change and its setup, planned only when a figure is needed."""

    change: Change
    setup: Setup

    @cached_property
    def memory(self) -> MemoryPlan:
        return memory_plan(self.setup, every_block=False)

    @cached_property
    def speed(self) -> SpeedPlan:
        return speed_plan(self.setup)

    @property
    def fits(self) -> bool:
        return Plan(self.setup, self.memory, None).fits == "yes"

    @property
    def plan(self) -> Plan:
        return Plan(self.setup, self.memory, self.speed)

    def is_faster_than(self, plan: Plan) -> bool:
        return self.speed.tokens_per_s > (1 + LEAST_GAIN) * plan.speed.tokens_per_s

    def is_smaller_than(self, plan: Plan) -> bool:
        return self.memory.device_bytes[1] < plan.memory.device_bytes[1]


def _tries(plan: Plan, changes: Iterable[Change | None]) -> list[_Try]:
    applied = ((change, change.applied(plan.setup)) for change in changes if change)
    return [_Try(change, setup) for change, setup in applied if setup]


def _faster(plan: Plan, tries: list[_Try]) -> list[_Try]:
    return [t for t in tries if _keeps_the_job(t, plan) and t.is_faster_than(plan) and t.fits]


def _keeps_the_job(t: _Try, plan: Plan) -> bool:
    """Tell whether the job stays the same. More GPUs, or another training, do not make this job's GPU faster."""
    return t.setup.world_size == plan.setup.world_size and t.change.price != TRAINING


def _cheapest_pair_that_fits(plan: Plan, tries: list[_Try], dearest: int) -> list[_Try]:
    """Return pairs that fit, cheaper than `dearest`. Skips pairs that together save at most half of what is missing."""
    missing = -plan.margin_bytes[0]
    saved = {t.change: plan.memory.device_bytes[1] - t.memory.device_bytes[1] for t in tries if t.is_smaller_than(plan)}
    likely = [pair for pair in combinations(saved, 2) if sum(map(saved.get, pair)) > missing / 2]
    likely += product(saved, _offloads_that_need_another(plan, tries))
    pairs = _tries(plan, (one.and_(other) for one, other in likely))
    for price in range(dearest):
        if found := [t for t in pairs if t.change.price == price and t.fits]:
            return _best_of_each_price(found)
    return []


def _offloads_that_need_another(plan: Plan, tries: list[_Try]) -> list[Change]:
    """Return changes of offload that are not valid alone. For example, DDP can't offload, but ZeRO-3 can."""
    possible = {t.change for t in tries}
    changes = [change for change in single_changes(plan.setup) if change not in possible]
    return [
        c for c in changes if dict(c.fields).get("offload", plan.setup.strategy.offload) != plan.setup.strategy.offload
    ]


def _pairs_to_speed_up(plan: Plan, tries: list[_Try]) -> list[_Try]:
    kept = [t for t in tries if _keeps_the_job(t, plan)]
    faster = [t.change for t in kept if t.is_faster_than(plan)]
    smaller = [t.change for t in kept if faster and t.is_smaller_than(plan)]
    return _tries(plan, (one.and_(other) for one, other in product(faster, smaller)))


def _best_of_each_price(tries: list[_Try]) -> list[_Try]:
    """Return one try for each price: the fastest of those with the fewest GPUs."""
    price = attrgetter("change.price")
    by_price = groupby(sorted(tries, key=price), key=price)
    return [max(group, key=lambda t: (-t.setup.world_size, t.speed.tokens_per_s)) for _, group in by_price]


def _worth_their_price(plan: Plan, tries: list[_Try]) -> list[_Try]:
    """Drop tries that cost more and are not faster. Keep another training only if all else halves the speed or adds
    GPUs."""
    worth: list[_Try] = []
    for t in tries:
        needed = t.change.price < TRAINING or all(_at_most_half_as_fast(other, plan) for other in worth)
        if needed and all(t.is_faster_than(cheaper.plan) for cheaper in worth):
            worth.append(t)
    return worth


def _at_most_half_as_fast(t: _Try, plan: Plan) -> bool:
    """Tell whether a try is less than half as fast as the plan, or needs more GPUs."""
    return t.change.price == GPUS or t.speed.tokens_per_s < plan.speed.tokens_per_s / 2
