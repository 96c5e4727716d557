"""What judges ask for in lab 8: the speed of the fastest strategy; and its program for the reference's ranks."""

from grading.references.lab8_capstone.fastest_strategy_program import (
    HIDDEN,
    ON_RANKS,
    asked,
    on_ranks,
    planned_tokens_per_s,
    races,
)

__all__ = ["HIDDEN", "ON_RANKS", "asked", "on_ranks", "planned_tokens_per_s", "races"]
