"""Check a strategy's promises one by one: compare the evidence of `shardplan.sharding_evidence` with `formulas`.

Each check is a function that yields its findings in words. For each check there is a broken program that no other check
catches (lib/tests/plan/test_sharding_evidence.py), so every check is needed.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from shardplan.formulas import Expected
from shardplan.sharding_evidence import MOMENTS, Evidence, reducing

ELSEWHERE = ("buckets", "activations", "temporaries", "other")
FEW_ELEMENTS = 256  # counts, flags and norms may be summed at any time
WHEN = {moment: f"after {moment}" for moment in MOMENTS} | {"between": "between steps"}


def failures(evidence: Evidence, expected: Expected) -> dict[str, str]:
    """Return the promises that this rank breaks: a sentence for each failed check, by the check's name (see CHECKS)."""
    found = {name: next(check(evidence, expected), None) for name, check in CHECKS.items()}
    claim = f"{expected.strategy} over {expected.shards} ranks"
    return {name: f"rank {evidence.rank}: {words} under {claim}" for name, words in found.items() if words}


def nothing_else_held(e: Evidence, x: Expected) -> Iterator[str]:
    for moment in ("init", "between"):
        held = {name: n for name, n in e.held[moment].items() if name in ELSEWHERE and n}
        if (total := sum(held.values())) > x.elsewhere + x.spare_bytes:
            yield f"{mib(total)} in {' and '.join(held)} {WHEN[moment]}, where at most {mib(x.elsewhere)} are due"


def gradients_reduced(e: Evidence, x: Expected) -> Iterator[str]:
    elements = sum(s.elements for s in reducing(e.sent))
    if elements < x.reduced_elements:
        yield f"{elements:,} elements of gradients are summed over ranks, where all {x.reduced_elements:,} are due"


def wire_bytes(e: Evidence, x: Expected) -> Iterator[str]:
    if e.wire_bytes > x.wire_bytes + x.spare_bytes:
        yield f"{mib(e.wire_bytes)} sent in a step, where at most {mib(x.wire_bytes)} are due"


def overlap(e: Evidence, x: Expected) -> Iterator[str]:
    if e.hidden_share < x.hidden_share and x.world_size > 1:
        yield (
            f"{e.hidden_share:.0%} of the gradients are on their way before backward has made the last one, "
            f"where at least {x.hidden_share:.0%} are due"
        )


def accumulates_locally(e: Evidence, x: Expected) -> Iterator[str]:
    elements = sum(s.elements for s in reducing(e.sent_in_no_sync))
    if elements > FEW_ELEMENTS:
        yield f"{elements:,} elements of gradients are summed over ranks inside no_sync, where none are due"


CHECKS: dict[str, Callable[[Evidence, Expected], Iterator[str]]] = {
    "parameters_sharded": lambda e, x: _held(e, x, "parameters", ("init", "between"), x.parameters),
    "gradients_sharded": lambda e, x: chain(
        _held(e, x, "gradients", ("backward", "step", "between"), x.gradients),
        _at_once(e, x, "gradients", x.gradients_peak),
    ),
    "optimizer_states_sharded": lambda e, x: _held(e, x, "optimizer_states", ("step", "between"), x.optimizer_states),
    "freed_after_use": lambda e, x: chain(
        _held(e, x, "unsharded", ("forward",), x.unsharded_after_forward),
        _held(e, x, "unsharded", ("backward", "step", "between"), 0),
    ),
    "few_units_at_once": lambda e, x: _at_once(e, x, "unsharded", x.unsharded_peak),
    "nothing_else_held": nothing_else_held,
    "gradients_reduced": gradients_reduced,
    "wire_bytes": wire_bytes,
    "overlap": overlap,
    "accumulates_locally": accumulates_locally,
}


def _held(e: Evidence, x: Expected, category: str, moments: tuple[str, ...], limit: int) -> Iterator[str]:
    for moment in moments:
        if (n := e.held[moment][category]) > limit + x.spare_bytes:
            yield f"{mib(n)} of {_WORDS[category]} {WHEN[moment]}, where at most {mib(limit)} are due"


def _at_once(e: Evidence, x: Expected, category: str, limit: int) -> Iterator[str]:
    if (n := e.peak[category]) > limit + x.spare_bytes:
        yield f"{mib(n)} of {_WORDS[category]} at once, where at most {mib(limit)} are due"


_WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    "unsharded": "unsharded parameters and gradients",
}


def mib(n_bytes: float) -> str:
    """Format a size for people: 1572864 is "1.50 MiB"."""
    return f"{n_bytes / 2**20:.2f} MiB"
