"""What ranks report of their memory, beside what the system sees: neither may be far more than the other."""

import pytest

from grading.boxes.rank_launcher_client import Watched
from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.judge.hidden_memory import LOOKS, MIB, hidden_bytes, in_words

PYTHON = 300  # MiB of a rank that are no tensors
SPARE, RANKS = 2, 4


class Looked:
    """A session whose ranks report and hold so many MiB each, in one look after the other."""

    def __init__(self, reported: float, *held: float, reference: float = 40) -> None:
        self.reported, self.held, self.reference, self.looks = reported, held, reference, 0

    def watch(self, check, drill, look) -> Watched:
        self.looks += 1
        return self._watched(self.reported, self.held[min(look, len(self.held) - 1)])

    def watch_reference(self, drill, look) -> Watched:
        return self._watched(self.reference, self.reference)

    @staticmethod
    def _watched(reported: float, held: float) -> Watched:
        return Watched([{"peak": reported * MIB}] * RANKS, Seen(int(RANKS * (PYTHON + held) * MIB)))


def hidden_mib(session) -> float:
    return hidden_bytes(session, "check", "drill", {"peak_bytes": lambda r: r["peak"]}, SPARE * MIB) / MIB


@pytest.mark.parametrize("held", [30.1, 38, 40, 41.9])
def test_a_report_that_the_system_confirms_is_believed_at_the_first_look(held):
    session = Looked(40, held)
    assert (hidden_mib(session), session.looks) == (0, 1)


@pytest.mark.parametrize(("held", "found"), [(42.1, 2.1), (60, 20), (29.9, -10.1), (0, -40)])
def test_what_is_held_beyond_the_report_and_what_is_reported_beyond_it_are_found(held, found):
    session = Looked(40, held)
    assert hidden_mib(session) == pytest.approx(found)
    assert session.looks == LOOKS


def test_one_look_that_misses_a_short_peak_is_no_fault_nor_one_that_sees_more():
    assert hidden_mib(Looked(40, 10, 40)) == hidden_mib(Looked(40, 60, 40)) == 0


def test_a_small_report_is_held_against_the_spare_bytes():
    assert hidden_mib(Looked(4, 0.1)) == 0, "a quarter of 4 MiB is less than the system can tell"
    assert hidden_mib(Looked(4.5, 0.4)) == pytest.approx(-4.1)


def test_both_are_said_in_words():
    assert "the system saw 2.5 MiB a rank more than your tensors' bytes explain" in in_words(2.5 * MIB)
    assert "the ranks report 12.0 MiB a rank more than the system ever saw" in in_words(-12 * MIB)


def test_where_nothing_can_be_measured_nothing_is_found():
    session = Looked(40, 0)
    session._watched = lambda reported, held: Watched([{"peak": reported * MIB}] * RANKS, Seen())
    assert hidden_mib(session) == 0
