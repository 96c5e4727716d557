"""`shardlab run`: execute notebooks as CI does, with papermill's option `-p name value`, and exit codes for CI.

0: all ran. 1: a notebook did not run, or its outputs show a problem. 2: the arguments are wrong.
"""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.core import TyperCommand

PARAMETER = ("-p", "--parameter")


class WithPairs(TyperCommand):
    """A command whose option -p takes two words, as in papermill. typer allows only one, so they are joined first."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        joined, rest = [], iter(args)
        for word in rest:
            joined.append(word)
            if word in PARAMETER:
                name = next(rest, "")
                joined.append(name if "=" in name else f"{name}={next(rest, '')}")
        return super().parse_args(ctx, joined)


def run_command(
    notebooks: Annotated[list[Path] | None, typer.Argument(help="all lessons and solutions if left out")] = None,
    tier: Annotated[
        str | None, typer.Option(help="cpu, cpu8, gpu1, gpu4, ... (shardlab.tier has all); detected if left out")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(*PARAMETER, metavar="NAME VALUE", help="as papermill's; may be repeated")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="outcomes; build/run/course.json if left out")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="outcomes as a JUnit file, one test a notebook")] = None,
    since: Annotated[
        Path | None, typer.Option(help="leave out what ran as it is now, by this file of outcomes, but for a quarter")
    ] = None,
    turn: Annotated[int, typer.Option(help="which quarter that is: 0 to 3, or any number, such as a commit's")] = 0,
) -> None:
    """Execute notebooks with papermill; what ran is kept in build/run."""
    from shardcourse.lessons.changed import chosen as chosen_since
    from shardcourse.lessons.parameters import parse, unknown
    from shardcourse.lessons.run import course_notebooks, run_notebooks
    from shardlab.tier import detect

    chosen = notebooks or course_notebooks()
    if chosen and not any(notebook.is_file() for notebook in chosen):  # with others, it is one of the outcomes
        near = get_close_matches(chosen[0].name, [n.name for n in chosen[0].parent.glob("*.ipynb")], 1)
        print(f"shardlab run: no file {chosen[0]}{f'; did you mean {near[0]}?' if near else ''}", file=sys.stderr)
        raise typer.Exit(2)
    if since:
        chosen = chosen_since(chosen, since, turn)
    try:
        detect(tier)
        parameters = parse(parameter or [])
        if problems := unknown(parameters, chosen):
            raise ValueError("; ".join(problems))
    except (ValueError, RuntimeError) as error:
        print(f"shardlab run: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(not run_notebooks(chosen, tier, Console(), json_file, parameters, junit))
