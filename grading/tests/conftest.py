"""What the grader's tests share: referees, and a sample's answers."""

from types import SimpleNamespace

import pytest
from deadlines import deadline_s
from submissions import LAB, Unboxed, launcher_or_no_reference

from grading.judge.find_lab import lab_module
from grading.judge.judge_answers import Referee
from grading.samples.trial import handed_in


@pytest.fixture(scope="session")
def referees():
    """Lab -> its referee, with one launcher for all submissions: here nobody is untrusted."""
    made: dict[str, Referee] = {}

    def referee_of(lab: str) -> Referee:
        if lab not in made:
            made[lab] = Referee(lab, tier="cpu", same_player=True)
        return made[lab]

    yield referee_of
    for referee in made.values():
        referee.close()


@pytest.fixture(scope="session")
def without_reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grading.judge.judge_answers.RankLauncher", launcher_or_no_reference)
        referee = Referee(LAB, tier="cpu", same_player=True)
    yield referee
    referee.close()


@pytest.fixture
def at_once(monkeypatch):
    """Nothing is compared with the reference of lab 2, and no deadline follows its pace."""
    monkeypatch.setattr("grading.judge.judge_answers.RankLauncher", launcher_or_no_reference)
    monkeypatch.setattr(lab_module(LAB), "pace", lambda session: None)
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", deadline_s(15))


@pytest.fixture
def referee(without_reference, at_once):
    return without_reference


@pytest.fixture
def unboxed(monkeypatch):
    """unboxed(lab, **replies): a referee whose ranks are this process; the reference's replies by drill, if not run."""

    def referee_of(lab: str, **replies) -> Referee:
        monkeypatch.setattr(lab_module(lab), "pace", lambda session: None)
        monkeypatch.setattr("grading.judge.judge_answers.RankLauncher", Unboxed)
        one_truth = SimpleNamespace(randbelow=lambda n: 1, choice=lambda seeds: seeds[0])  # for all
        monkeypatch.setattr("grading.judge.reference_lookup.secrets", one_truth)
        referee = Referee(lab, tier="cpu", same_player=True)
        referee._reference.replies = replies
        return referee

    return referee_of


@pytest.fixture
def answers():
    """Sample -> the pickled answers that its notebook hands in."""
    return handed_in
