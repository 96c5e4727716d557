"""Lab 7 on the ranks: every drill, and what takes the submission's place where the reference runs."""

from grading.checks.lab7_debug import experts_run, hang_run, memory_run
from grading.checks.lab7_debug.budgets import BUDGETS
from grading.checks.lab7_debug.experts_run import experts
from grading.checks.lab7_debug.hang_run import training
from grading.checks.lab7_debug.memory_run import accumulation
from grading.checks.lab7_debug.resume_run import Unsaved, interrupted, resumed
from grading.checks.lab7_debug.tools_run import diagnoses, search

__all__ = ["BUDGETS", "accumulation", "diagnoses", "experts", "interrupted", "resumed", "search", "training"]
experts_of_rank_0 = experts  # with the mistake that it is called after

REFERENCE = {
    "training": hang_run.reference,
    "experts": experts_run.reference,
    "experts_of_rank_0": experts_run.from_rank_0,
    "accumulation": memory_run.reference,
    "interrupted": Unsaved,
}
