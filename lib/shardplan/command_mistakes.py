"""A user's mistake in one line, with options to add that were tried: the same command plans with them."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from shardlab.launch import LaunchError
from shardplan.aliases import as_options
from shardplan.config_fields import ConfigWarning
from shardplan.strategy import Refusal
from shardsim.machines import TakenAs

MOST_FIXES = 4


@contextmanager
def mistakes_in_one_line(attempt: Callable[[dict], object]) -> Iterator[None]:
    """Print a user's mistake, with options that would do, and exit with code 2. Print warnings in a line too.

    `attempt` tries the same command with other fields.
    """
    show = warnings.showwarning

    def one_line(message, category, *place, **more) -> None:
        if issubclass(category, (ConfigWarning, TakenAs)):
            print(f"shardlab plan: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **more)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line
            yield
    except (ValueError, OSError, LaunchError) as error:
        words = str(error)
        if isinstance(error, Refusal) and (fix := _that_plans(error.fix, attempt)):
            words = f"{error.problem}; this would do: {as_options(fix)}"
        print(f"shardlab plan: {words.replace('world_size', 'gpus')}", file=sys.stderr)  # the option's name
        raise typer.Exit(2) from None


def _that_plans(fix: dict, attempt: Callable[[dict], object]) -> dict:
    """Return the fix with what else has to change for it; {} if the job still can't be planned."""
    for _ in range(MOST_FIXES):
        try:
            with warnings.catch_warnings(action="ignore"):
                attempt(fix)
            return fix
        except Refusal as another:
            fix = fix | another.fix
        except ValueError:
            return {}
    return {}
