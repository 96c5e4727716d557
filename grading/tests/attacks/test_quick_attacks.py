"""One attack of every module by day: its notebook hands in one answer, and nothing is timed beside the reference."""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import nbformat
import pytest
from deadlines import deadline_s
from hostile_submissions import gains_nothing
from submissions import launcher_or_no_reference

from grading.attacks.attack import CHECK, LAB, WRAPPER, Attack
from grading.attacks.submit import ATTACKS, GROUPS, course
from grading.boxes.sandbox import Bubblewrap
from grading.judge.find_lab import lab_module

pytestmark = pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")
QUICK = {  # one for each of the modules; what the kernel's counters find, test_memory_and_network_counters tries by day
    "asks_for_the_solution_on_the_rank",
    "hides_a_copy_in_memory_that_no_process_has_mapped",
    "replies_in_the_hosts_place",
    "replies_numbers_of_its_own_kind",
    "reads_the_graders_keys_and_leaves_one",
    "prints_50_megabytes",
    "writes_where_it_does_not_belong",
    "doubles_the_checks",
}


@dataclass(frozen=True)
class Alone:
    """An attack whose notebook hands in one answer, that which it is after: the lab's other checks take no time."""

    attack: Attack

    def __getattr__(self, name):
        return getattr(self.attack, name)

    def notebook(self) -> nbformat.NotebookNode:
        nb = self.attack.notebook()
        (wanted,) = self.wants or (CHECK,)
        cell = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade_id == WRAPPER)
        cell.source += "\n\ndef launch(*_, **__): return []\n\ndef check(name, *answer, hand_in=check):\n"
        cell.source += f"    return hand_in(name, *answer) if name == {wanted!r} else None\n"
        return nb

    def hand_in(self, folder: Path) -> None:
        nbformat.write(self.notebook(), folder / f"{LAB}.ipynb")
        self.spoil(folder)


@pytest.fixture(scope="module")
def short_course():
    """Nobody's first submission is one of these, too, and what is judged is not timed beside the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grading.attacks.submit.Attack", lambda name: Alone(Attack(name)))
        patch.setattr("grading.judge.judge_answers.RankLauncher", launcher_or_no_reference)
        patch.setattr(lab_module(LAB), "pace", lambda session: None)
        patch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", deadline_s(20))
        with course() as classroom:
            yield classroom


def test_there_is_a_quick_one_of_every_module():
    of_module = [{a.name for a in module.ATTACKS} for module in GROUPS]
    assert [len(QUICK & names) for names in of_module] == [1] * len(GROUPS)


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.name in QUICK], ids=attrgetter("name"))
def test_it_gains_nothing_by_the_check_that_it_is_after(attack, short_course):
    gains_nothing(Alone(attack), short_course)
