"""Seconds of Muon's updates, which begin when backward has ended: Newton-Schulz, and its messages.

If owners work at once, each has its share of the work, or the largest matrix if that is more. Else nobody computes
less than all of it: every rank does, or the others wait for the owner whose turn it is.
"""

from collections.abc import Callable

from shardplan.planned_job import Setup
from shardplan.speed.collectives import cluster, seconds
from shardplan.speed.kernels import product_s
from shardplan.stage_parameters import Stage
from shardplan.traffic.groups import Group
from shardplan.traffic.muon import EACH, Matrix, matrices, muon_sends, products, sharers
from shardsim.closed_forms import all_to_all_s


def newton_schulz_s(setup: Setup, stage: Stage) -> float:
    """Seconds in which the busiest rank orthogonalises."""
    return _of_busiest(setup, stage, lambda m: sum(product_s(setup, p, EACH) for p in products(m)))


def messages_s(setup: Setup, stage: Stage) -> float:
    """Seconds of the messages, one after the other. In an all_to_all the busiest owner counts."""
    if setup.strategy.muon_way != "all-at-once":
        return sum(send.times * seconds(setup, send) for send in muon_sends(setup, stage))
    of_groups = _by_group(setup, stage) if setup.strategy.sharded[0] else {}
    owned = {g: _busiest(g.size, [(m, m.n_bytes) for m in found]) for g, found in of_groups.items() if g.size > 1}
    return sum(2 * all_to_all_s(cluster(setup, group), n_bytes) for group, n_bytes in owned.items())


def launches(setup: Setup, stage: Stage) -> float:
    """Kernels of the busiest rank: the products of each matrix, its norm, a division, casts."""
    return _of_busiest(setup, stage, lambda m: len(products(m)) + 5)


def _of_busiest(setup: Setup, stage: Stage, each: Callable[[Matrix], float]) -> float:
    shares = setup.strategy.muon_way == "all-at-once" and setup.strategy.sharded[0]
    groups = _by_group(setup, stage).items()
    return sum(_busiest(ranks.size if shares else 1, [(m, each(m)) for m in found]) for ranks, found in groups)


def _by_group(setup: Setup, stage: Stage) -> dict[Group, list[Matrix]]:
    found: dict[Group, list[Matrix]] = {}
    for m in matrices(setup, stage):
        found.setdefault(sharers(setup, m), []).append(m)
    return found


def _busiest(ranks: int, amounts: list[tuple[Matrix, float]]) -> float:
    """Return a rank's share of an amount for each matrix, or the largest matrix's."""
    return max(sum(m.times * m.experts * each for m, each in amounts) / ranks, max(each for _, each in amounts))
