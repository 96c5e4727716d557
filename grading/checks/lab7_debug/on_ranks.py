"""Lab 7 on the ranks: every drill, and the references in place of the submission."""

from grading.checks.lab7_debug import experts_training, hang_training, memory_training
from grading.checks.lab7_debug.experts_training import experts
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
    "interrupted",
    "python_memory",
    "resumed",
    "search",
    "trainings",
]
experts_of_rank_0 = experts_alone = experts_mean_of_decisions = experts  # the mistakes of their references

REFERENCE = {
    "trainings": hang_training.reference,
    "experts": experts_training.reference,
    "experts_of_rank_0": experts_training.from_rank_0,
    "experts_alone": experts_training.each_alone,
    "experts_mean_of_decisions": experts_training.mean_of_decisions,
    "accumulation": memory_training.reference,
    "interrupted": Unsaved,
}
