"""What judges ask for in lab 1: the right predictions, and those of usual mistakes."""

from grading.references.lab1_memory.mistake_predictions import HIDDEN, ON_RANKS, asked, explained

__all__ = ["HIDDEN", "ON_RANKS", "asked", "explained"]
