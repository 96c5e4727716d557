"""The setup of a plan: a model, a cluster and a strategy that go together.

Errors name the field, its value, the reason, and the nearest value with which this setup can be planned. If one value
is not enough, they name further fields; each fix is tried before it is named.
"""

import copy
from dataclasses import dataclass, replace

from shardplan.checks import Unfit, check, divisor
from shardplan.job import Job
from shardplan.strategy import Refusal

MOST_FIXES = 8


@dataclass(frozen=True)
class Setup(Job):
    """A job that goes together. Raises ValueError with the field and a valid value if it does not."""

    def __post_init__(self) -> None:
        try:
            check(self)
        except Unfit as found:
            fix = _fix(self, found)
            values = ", ".join(f"{name}={value!r}" for name, value in fix.items())
            nearest = f"; the nearest value that would do is {values}" if fix else ""
            raise Refusal(f"{found.field}={found.value!r} won't do: {found.why}", nearest, fix) from None


def _fix(setup: Setup, found: Unfit) -> dict:
    """Return the nearest fields with which the setup can be planned. Fixes what is found until nothing is.

    If another number of GPUs does not lead there, the degrees of parallelism are fixed instead.
    """
    for degrees_first in (False, True):
        fixed, unfit, fix = setup, found, {}
        for _ in range(MOST_FIXES):
            nearest = (degrees_first and unfit.field == "world_size" and _smaller_degrees(fixed)) or unfit.nearest
            fix |= nearest
            fixed = _changed(fixed, nearest)
            try:
                check(fixed)
            except Unfit as another:
                unfit = another
            else:
                return fix
    return {}


def _smaller_degrees(setup: Setup) -> dict:
    """Return degrees that divide the GPUs, each the nearest."""
    left, degrees = max(1, int(setup.world_size)), {}
    for name in ("tensor", "pipeline", "context"):
        degree = divisor(getattr(setup.strategy, name), left)
        left //= degree
        if degree != getattr(setup.strategy, name):
            degrees[name] = degree
    return degrees


def _changed(setup: Setup, fields: dict) -> Setup:
    """Return a copy that is not checked."""
    changed, of_strategy = copy.copy(setup), {name: value for name, value in fields.items() if name != "world_size"}
    object.__setattr__(changed, "world_size", fields.get("world_size", setup.world_size))
    object.__setattr__(changed, "strategy", replace(setup.strategy, **of_strategy))
    return changed
