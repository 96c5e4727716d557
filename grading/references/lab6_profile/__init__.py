"""What judges ask for in lab 6: drawn traces with their figures; and the repaired program for the reference's ranks."""

from grading.references.lab6_profile.repaired_program import ON_RANKS, races
from grading.references.lab6_profile.traces_with_right_and_wrong_figures import asked, drawn

__all__ = ["ON_RANKS", "asked", "drawn", "races"]
