"""Calibrate a plan to a run of the user's own: what the measured speed and memory say of its machine.

    learn(setup, read(["tokens_per_s=5200", "memory=61GiB"])).setup        the same job, on the machine as measured

*Speed.* All computing is slower or faster than planned by one factor, `pace`; messages and launches are as planned.
*Memory.* If the measured bytes lie within the planned range, they tell what the allocator reserves (`reserve`). Bytes
outside of the range are in use for something that is not planned (`extra`). Both hold for other plans on this machine.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import ceil, floor

from shardplan.formatting import GIB, gib
from shardplan.memory import memory_plan
from shardplan.memory.allocator import WORST
from shardplan.planned_job import Setup
from shardplan.speed import speed_plan
from shardsim.machines import Machine

BYTES = ("memory", "reserved", "allocated", "extra")
NAMES = ("tokens_per_s", "job_tokens_per_s", *BYTES, "pace", "reserve")
OF_ANY_PLAN = ("pace", "reserve", "extra")  # what was learnt before
UNITS = {"": GIB, "gib": GIB, "gb": 1e9, "g": GIB, "mib": 1 << 20, "mb": 1e6, "b": 1}
SLOWEST, FASTEST = 0.02, 5.0  # of the planned pace


@dataclass(frozen=True)
class Learnt:
    setup: Setup
    words: tuple[str, ...] = ()


def read(pairs: list[str]) -> dict[str, float]:
    """Read "name=number" pairs; bytes may have a unit, GiB by default. Raises ValueError with the nearest name."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        number = re.fullmatch(r"([\d.,_]+(?:e\d+)?)\s*([a-z]*)", value.strip().lower())
        if name not in NAMES:
            (near,) = get_close_matches(name, NAMES, 1, 0.0)
            raise ValueError(f"measured {name!r} is not known; did you mean {near!r}? There are {', '.join(NAMES)}")
        if not number or number[2] not in (UNITS if name in BYTES else ("",)):
            example = f"{name}={'61GiB' if name in BYTES else '5200' if 'tokens' in name else '0.9'}"
            raise ValueError(f"measured {pair!r} is no number; write it as {example!r}")
        found[name] = float(number[1].replace(",", "").replace("_", "")) * (UNITS[number[2]] if name in BYTES else 1)
        if not found[name] > 0:
            raise ValueError(f"measured {pair!r}, but it must be above 0")
    return found


def as_before(machine: Machine, measured: dict[str, float]) -> Machine:
    """Return the machine with what an earlier run taught: its pace, its reserve, its extra bytes."""
    pace, reserve = measured.get("pace", machine.gpu.pace), measured.get("reserve", machine.reserve)
    extra = measured.get("extra", machine.extra_bytes)
    return replace(machine, gpu=replace(machine.gpu, pace=pace), reserve=reserve, extra_bytes=extra)


def learn(setup: Setup, measured: dict[str, float]) -> Learnt:
    """Return the setup on the machine as a run of this setup measured it, and what was learnt, in words.

    Raises ValueError if no machine of this kind could be as fast or slow.
    """
    start = replace(setup, machine=as_before(setup.machine, measured))
    words = [*_memory(start, measured), *_speed(start, measured)]
    machine = start.machine
    for _, changes in words:
        machine = replace(machine, **changes)
    values = {"pace": machine.gpu.pace, "reserve": machine.reserve, "extra": machine.extra_bytes / GIB}
    kept = " ".join(f"{name}={value:.3g}" + "GiB" * (name == "extra") for name, value in values.items() if value)
    said = [sentence for sentence, _ in words]
    more = (f"for other plans on this machine, add --measured {kept}",) if words else ()
    return Learnt(replace(start, machine=machine), (*said, *more))


def _speed(setup: Setup, measured: dict[str, float]) -> list[tuple[str, dict]]:
    job = measured.get("job_tokens_per_s")
    wanted = measured.get("tokens_per_s", job and job / setup.world_size)
    if not wanted:
        return []
    planned = speed_plan(setup)
    share = planned.hfu * wanted / planned.tokens_per_s
    most = floor(min(_tokens_per_s(setup, FASTEST), 0.99 * planned.tokens_per_s / planned.hfu))
    least = ceil(_tokens_per_s(setup, SLOWEST))
    if share >= 1:
        job = f"job_tokens_per_s={wanted:.0f}, if that is the whole job's"
        nearest = job if least <= wanted / setup.world_size <= most else f"tokens_per_s={most}"
        raise ValueError(
            f"tokens_per_s={wanted:,.0f} for each GPU would be {share:.0%} of its peak; nearest: {nearest}"
        )
    if not least <= wanted <= most:
        raise ValueError(
            f"tokens_per_s={wanted:,.0f} can't be explained by the speed of computing alone: is it another machine, or "
            f"another batch? The nearest that can is tokens_per_s={least if wanted < least else most}"
        )
    low, high = SLOWEST, FASTEST
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _tokens_per_s(setup, middle) < wanted else (low, middle)
    pace = setup.machine.gpu.pace * low
    said = f"your GPUs sustain {share:.0%} of their peak; planned were {planned.hfu:.0%}. "
    said += f"Computing takes {1 / low:.2f} times as long as planned."
    return [(said, {"gpu": replace(setup.machine.gpu, pace=pace)})]


def _tokens_per_s(setup: Setup, pace: float) -> float:
    gpu = replace(setup.machine.gpu, pace=setup.machine.gpu.pace * pace)
    return speed_plan(replace(setup, machine=replace(setup.machine, gpu=gpu))).tokens_per_s


def _memory(setup: Setup, measured: dict[str, float]) -> list[tuple[str, dict]]:
    planned, found, extra = memory_plan(setup), [], setup.machine.extra_bytes
    if allocated := measured.get("allocated"):
        beyond = allocated - planned.max_memory_allocated
        extra += beyond
        found.append((f"tensors take {_more(beyond)} than counted.", {"extra_bytes": extra}))
    beside = planned.context_bytes - planned.workspaces_bytes  # what the allocator reserves holds the workspaces
    in_use = measured.get("memory", measured.get("reserved", 0.0) + beside)
    if "memory" in measured or "reserved" in measured:
        least = planned.reserved_bytes[0]
        held = in_use - planned.context_bytes - (extra - setup.machine.extra_bytes)
        reserve = min(max(held / least, 1.0), WORST)
        beyond = held - reserve * least
        said = (
            f"PyTorch holds {reserve - 1:.0%} more than the least that was planned; planned were 0% to {WORST - 1:.0%}."
        )
        if abs(beyond) > 0.01 * least:
            said = f"{_more(beyond)} than counted: other libraries or programs, or tensors that the plan does not have."
        found.append((said, {"reserve": reserve, "extra_bytes": extra + beyond}))
    return found


def _more(n_bytes: float) -> str:
    return f"{gib(abs(n_bytes))} {'more' if n_bytes >= 0 else 'less'}"
