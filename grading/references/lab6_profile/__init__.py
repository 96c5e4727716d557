"""What judges ask for in lab 6: drawn traces with their figures; and the repaired program for the reference's ranks."""

from grading.references.lab6_profile.drawn_traces import asked, drawn
from grading.references.lab6_profile.repaired_program import ON_RANKS, races

__all__ = ["ON_RANKS", "asked", "drawn", "races"]
