"""What the grader's tests share: referees, and a sample's answers."""

import pytest
from submissions import LAB

from grading.referee import Referee
from grading.samples.trial import handed_in


@pytest.fixture(scope="session")
def referees():
    """Lab -> its referee, with one crew for all submissions: here nobody is untrusted."""
    made: dict[str, Referee] = {}

    def referee_of(lab: str) -> Referee:
        if lab not in made:
            made[lab] = Referee(lab, tier="cpu", same_player=True)
        return made[lab]

    yield referee_of
    for referee in made.values():
        referee.close()


@pytest.fixture
def referee(referees):
    return referees(LAB)


@pytest.fixture
def answers():
    """Sample -> the pickled answers that its notebook hands in."""
    return handed_in
