"""Lab 1: what usual mistakes predict, to tell a wrong prediction by. Measured bytes decide what is right."""

from collections.abc import Iterator

from grading.checks.lab1_memory.judge_predictions import Judge, drawn
from grading.checks.lab1_memory.lab import CHECKS
from grading.checks.lab1_memory.programs import Setup
from grading.references.lab1_memory import weighted_memory_formulas
from grading.references.lab1_memory.mistakes import candidates, predictions

QUANTITIES = ("resident", "peak")
ON_RANKS = {}  # ranks measure


def asked(seed: int) -> Iterator[tuple]:
    programs = (check.judge.program for check in CHECKS.values() if isinstance(check.judge, Judge))
    return (("explained", program, drawn(program, seed)) for program in programs)


def explained(program: str, setups: list[dict]) -> dict:
    """Return the right predictions by quantity, those of each usual mistake, and the moments of the peaks in words."""
    known = [Setup(**s) for s in setups]

    def of(weights) -> dict[str, list[float]]:
        return {quantity: predictions(program, quantity, known, weights) for quantity in QUANTITIES}

    return {
        "right": of(lambda s: {}),
        "mistakes": [[words, of(weights)] for words, weights in candidates(program)],
        "moments": [weighted_memory_formulas.fullest_moment(program, s) for s in known],
    }


HIDDEN = ("9 * s.L + 3", "4 * s.F + s.H + 2", "12 * s.B * s.T * (s.V + s.D)")
