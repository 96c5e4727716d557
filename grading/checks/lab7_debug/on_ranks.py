"""Lab 7 on the ranks: every drill, and the references in place of the submission."""

from grading.checks.lab7_debug import experts_training, hang_training, memory_training
from grading.checks.lab7_debug.experts_training import experts
from grading.checks.lab7_debug.hang_training import training
from grading.checks.lab7_debug.memory_budgets import BUDGETS
from grading.checks.lab7_debug.memory_training import accumulation
from grading.checks.lab7_debug.resume_training import Unsaved, interrupted, resumed
from grading.checks.lab7_debug.tools_on_ranks import diagnoses, search

__all__ = ["BUDGETS", "accumulation", "diagnoses", "experts", "interrupted", "resumed", "search", "training"]
experts_of_rank_0 = experts  # its reference makes the mistake in its name

REFERENCE = {
    "training": hang_training.reference,
    "experts": experts_training.reference,
    "experts_of_rank_0": experts_training.from_rank_0,
    "accumulation": memory_training.reference,
    "interrupted": Unsaved,
}
