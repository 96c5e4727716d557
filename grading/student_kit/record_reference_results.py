"""Record what judges ask of our own answers, so that `check` works where these are not.

A kit has it for a few seeds. It holds results, such as the fewest FLOPs of a plan or a time ratio, and no code.
"""

import importlib
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from grading.boxes.rank_launcher_client import RankLauncher, ReferenceFailedError
from grading.boxes.sandbox import Processes
from grading.judge.find_lab import lab_module
from grading.judge.reference_lookup import N_SEEDS, OurAnswers, answers_for, key_of, write
from grading.judge.session import Session
from grading.judge.timed_laps import ratio_of_references
from shardlab.tier import TIERS

PAIRS = 9  # of laps, for the ratio of our answer's time and of what races in its place


def draw_seeds(count: int) -> list[int]:
    """Return seeds for a kit: a grading draws from all of them, and from more."""
    return sorted(random.SystemRandom().sample(range(N_SEEDS), count))


def record(lab: str, seeds: list[int], folder: Path, show: Callable[[str], None] = print) -> None:
    """Write the lab's record into the folder, if judges ask something of our answers to it."""
    ours, module = answers_for(lab)
    if module is None:
        return
    answers = importlib.import_module(module)
    show(f"{lab}: what judges ask, for {len(seeds)} seeds")
    solved = {
        key_of(name, *arguments): getattr(answers, name)(*arguments)
        for seed in seeds
        for name, *arguments in answers.asked(seed)
    }
    replies, paces = _of_ranks(lab, module, ours, seeds, show)
    write(lab, folder, seeds=seeds, solved=solved, replies=replies, paces=paces)


def _of_ranks(
    lab: str, module: str, ours: OurAnswers, seeds: list[int], show: Callable[[str], None]
) -> tuple[dict, dict]:
    """Return by key what our answers' ranks reply, and the times of our answers over those of what stands in."""
    answers, drills = importlib.import_module(module), lab_module(lab).DRILLS
    asked = {key_of(*one): one for seed in seeds for one in _listed(answers, "on_ranks", seed)}
    races = {key_of(*one): one for seed in seeds for one in _listed(answers, "races", seed)}
    if not asked and not races:
        return {}, {}
    box = Processes(limits=None)  # nobody's code but ours
    with (
        closing(RankLauncher(drills, box=box)) as stand_in,
        closing(RankLauncher(drills, module, box=box, error=ReferenceFailedError)) as reference,
    ):
        session = Session({}, stand_in, reference, TIERS["cpu"], lambda session: None, 1e-3, ours)
        replies = {key: session.order_reference(drill, **arguments) for key, (drill, arguments) in asked.items()}
        paces = {}
        for i, (key, (drill, arguments)) in enumerate(races.items(), 1):
            show(f"{lab}: race {i} of {len(races)}")
            paces[key] = round(ratio_of_references(session, drill, PAIRS, **arguments), 3)
    return replies, paces


def _listed(answers, name: str, seed: int) -> list[tuple[str, dict]]:
    return list(getattr(answers, name, lambda seed: ())(seed))
