"""Boxes for untrusted code: `best_box()` returns the best one that this machine has.

bubblewrap ──> no network, few files beyond the system's, and nothing that is written stays
gpu_access ──> what a program in a box needs for this machine's GPUs
plain_processes ──> limits only; used where there is no bubblewrap
limits, limit_watchdog ──> how much a box may use; a thread outside the box that ends it if it uses more
boxed_program ──> a program in a box, which exchanges lines of JSON with us
"""

from grading.boxes.sandbox.bubblewrap import Bubblewrap
from grading.boxes.sandbox.limits import Limits
from grading.boxes.sandbox.plain_processes import Processes

Box = Bubblewrap | Processes


def best_box(limits: Limits | None = None) -> Box:
    limits, obstacle = limits or Limits.of_this_machine(), Bubblewrap.obstacle()
    return Processes(limits, obstacle) if obstacle else Bubblewrap(limits)


__all__ = ["Box", "Bubblewrap", "Limits", "Processes", "best_box"]
