"""What judges ask for in lab 4: the price of offloading and scaling efficiencies, right and with usual mistakes."""

from grading.references.lab4_fsdp.costs_and_efficiencies_with_mistakes import ON_RANKS, asked, efficiencies, priced

__all__ = ["ON_RANKS", "asked", "efficiencies", "priced"]
