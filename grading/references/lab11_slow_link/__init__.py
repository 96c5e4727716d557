"""What a judge asks for in lab 11: how long every allowed schedule takes."""

from grading.references.lab11_slow_link.schedule_times import HIDDEN, ON_RANKS, asked, times

__all__ = ["HIDDEN", "ON_RANKS", "asked", "times"]
