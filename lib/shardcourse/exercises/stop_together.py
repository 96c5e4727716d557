"""Check of lesson 11b's exercise: a training loop in which all ranks stop, save and resume at the same step."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist

from shardcourse.experiments.small_run import sharded, train
from shardlab import LaunchError, launch, state

Told = Callable[[int], bool]
Training = Callable[[Path, int, int, Told], dict[int, float]]
Run = Callable[[Path, tuple[int, ...]], list[dict[int, float]]]  # (folder, SEEN_FROM) -> each rank's losses

N, LAST, EVERY = 4, 10, 4
SEEN_FROM = (5, 4, 6, 5)  # the step after which each rank sees the stop file
NEVER = (LAST,) * N


def check_training(training: Training) -> str:
    """Return in words what is wrong with `training(folder, last, every, told)`, or that it is right."""
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        undisturbed = launch(_losses, N, device="cpu", stream=False)[0]
        timeout_s = max(10.0, 8 * (time.monotonic() - began))  # longer on a busy machine
        run = partial(launch, partial(_run, training), N, timeout_s=timeout_s, device="cpu", stream=False)
        try:
            for case in (_not_told, _told_at_different_steps, _resumed):
                if problem := case(run, folder, undisturbed):
                    return problem
        except LaunchError as error:
            return _in_words(error)
    return "Right: all ranks stop after the same step, and the job that resumes has the losses of the undisturbed run."


def _not_told(run: Run, folder: Path, undisturbed: dict[int, float]) -> str:
    found = run(folder / "whole", NEVER)
    for losses in found:
        if losses != undisturbed:
            return f"Without a stop file: {_difference(losses, undisturbed, 0)}."
    step = _saved_step(folder / "whole")
    due = LAST // EVERY * EVERY
    return "" if step == due else f"Without a stop file the last checkpoint is of step {step}, not of step {due}."


def _told_at_different_steps(run: Run, folder: Path, undisturbed: dict[int, float]) -> str:
    found = run(folder / "told", SEEN_FROM)
    ends = [max(losses, default=-1) for losses in found]
    if len(set(ends)) > 1:
        return f"The ranks stop after different steps: {', '.join(map(str, ends))}."
    if ends[0] != SEEN_FROM[0]:
        return f"Rank 0 sees the stop file after step {SEEN_FROM[0]}; your ranks stop after step {ends[0]}."
    step = _saved_step(folder / "told")
    due = SEEN_FROM[0] + 1
    return "" if step == due else f"The stopped ranks have saved step {step}; {due} steps were done."


def _resumed(run: Run, folder: Path, undisturbed: dict[int, float]) -> str:
    found = run(folder / "told", NEVER)[0]
    first = SEEN_FROM[0] + 1
    rest = {step: loss for step, loss in undisturbed.items() if step >= first}
    return "" if found == rest else f"After the restart: {_difference(found, rest, first)}."


def _run(training: Training, folder: Path, seen_from: tuple[int, ...]) -> dict[int, float]:
    found = training(folder, LAST, EVERY, lambda step: step >= seen_from[dist.get_rank()])
    dist.barrier()  # so that a rank that has left the loop alone is noticed
    return found


def _losses() -> dict[int, float]:
    return dict(enumerate(train(*sharded(), 0, LAST)))


def _saved_step(folder: Path) -> str | int:
    try:
        return int(state.latest(folder).name.removeprefix("step-").partition(".")[0])
    except FileNotFoundError:
        return "none"


def _difference(found: dict[int, float], expected: dict[int, float], first: int) -> str:
    if not isinstance(found, dict):
        return f"it returned {found!r:.40}, not a dict of losses by step"
    if list(found) != list(expected):
        done = f"steps {min(found)} to {max(found)}" if found else "no steps"
        return f"it did {done}, not steps {first} to {LAST - 1}"
    wrong = next(step for step in expected if found[step] != expected[step])
    return f"the loss of step {wrong} is not the loss of the undisturbed run"


def _in_words(error: LaunchError) -> str:
    return f"It hangs or fails. {str(error).strip().splitlines()[0]}"
