"""Lab 7 on the ranks: every drill, and the references in place of the submission."""

from grading.checks.lab7_debug import experts_on_ranks, hang_on_ranks, memory_on_ranks
from grading.checks.lab7_debug.experts_on_ranks import experts, experts_truth
from grading.checks.lab7_debug.hang_on_ranks import trainings
from grading.checks.lab7_debug.memory_budgets import BUDGETS
from grading.checks.lab7_debug.memory_on_ranks import accumulation, python_memory
from grading.checks.lab7_debug.resume_on_ranks import Unsaved, interrupted, resumed
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
    "trainings": hang_on_ranks.unguarded,
    "experts": experts_on_ranks.unbalanced,
    "experts_truth": None,
    "accumulation": memory_on_ranks.without_figures,
    "interrupted": Unsaved,
}
