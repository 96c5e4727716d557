"""What is asked of every attack's grading."""

from grading.attacks.attack import Attack
from grading.attacks.submit import LONGEST_S, submit
from grading.gradebook.nbgrader_classroom import Classroom


def gains_nothing(attack: Attack, classroom: Classroom) -> None:
    """Hand an attack in and have it graded: no points, nothing changed, and words that say why."""
    outcome = submit(attack, classroom)
    assert outcome.failed, outcome
    assert outcome.seconds < LONGEST_S
    assert outcome.words, "nobody is told why"
    if attack.name.startswith(("forges_the_account", "keeps_a_copy")):  # and did not fail by itself
        assert "the system" in outcome.words
    print(outcome)
