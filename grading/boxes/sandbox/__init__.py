"""Boxes for code that nobody has read: `best_box()` is the best that this machine has.

bubblewrap ──> no network, of files hardly more than the system's, and nothing that is written stays
processes ──> where there is no bubblewrap: limits alone
limits, guard ──> how much a box may use; who watches that from outside, and ends what uses more
wall ──> a program in a box, spoken to in lines of JSON
"""

from grading.boxes.sandbox.bubblewrap import Bubblewrap
from grading.boxes.sandbox.limits import Limits
from grading.boxes.sandbox.processes import Processes

Box = Bubblewrap | Processes


def best_box(limits: Limits | None = None) -> Box:
    limits, obstacle = limits or Limits.of_this_machine(), Bubblewrap.obstacle()
    return Processes(limits, obstacle) if obstacle else Bubblewrap(limits)


__all__ = ["Box", "Bubblewrap", "Limits", "Processes", "best_box"]
