"""What the grader's tests share: referees, and a sample's answers."""

import pytest
from submissions import LAB, handed_in

from grading.referee import Referee
from grading.samples import Sample


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
def answers(tmp_path):
    """Sample -> the pickled answers that its notebook hands in."""

    def make(sample: Sample) -> dict[str, bytes]:
        return handed_in(sample, tmp_path)

    return make
