"""Lab 7 on the ranks: every drill, and the references in place of the submission."""

from grading.checks.lab7_debug import experts_training, hang_training, memory_training
from grading.checks.lab7_debug.experts_training import experts, experts_truth
from grading.checks.lab7_debug.hang_training import trainings
from grading.checks.lab7_debug.memory_budgets import BUDGETS
from grading.checks.lab7_debug.memory_training import accumulation, python_memory
from grading.checks.lab7_debug.resume_training import Unsaved, interrupted, resumed
from grading.checks.lab7_debug.tools_on_ranks import diagnoses, search

__all__ = [
    "BUDGETS",
    "accumulation",
    "diagnoses",
    "experts",
    "experts_truth",
    "interrupted",
    "python_memory",
    "resumed",
    "search",
    "trainings",
]
REFERENCE = {
    "trainings": hang_training.unguarded,
    "experts": experts_training.unbalanced,
    "experts_truth": None,
    "accumulation": memory_training.without_figures,
    "interrupted": Unsaved,
}
