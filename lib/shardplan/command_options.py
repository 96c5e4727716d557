"""Options of `shardlab plan` for every field of a Strategy, and the other names that an option may have."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, get_type_hints

import typer
from typer.core import TyperCommand

from shardplan.aliases import in_our_options
from shardplan.strategy import CHOICES, WHOLE_NUMBERS, Strategy

HELP = {name: hint.__metadata__[0] for name, hint in get_type_hints(Strategy, include_extras=True).items()}
_OFF = "no_"


class PlanCommand(TyperCommand):
    """A command whose options may have other tools' names, and whose --measured takes several words."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        flags = {name for p in self.params if getattr(p, "is_flag", False) for name in p.opts}
        return super().parse_args(ctx, in_our_options(args, flags))


def whole_number(text: str) -> int:
    """Read "8", "1,024" or "1e6". Raises typer.BadParameter."""
    try:
        number = float(str(text).replace(",", "").replace("_", ""))
    except ValueError:
        number = 0.5
    if number != int(number):
        raise typer.BadParameter(f"{text!r} is no whole number, such as 8, 1024 or 1e6")
    return int(number)


def with_options(command: Callable) -> Callable:
    """Return the command with an option for every field of a Strategy, in the signature that typer reads."""
    given = inspect.signature(command)
    own = [p for p in given.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    types = get_type_hints(Strategy)
    options = [_option(f.name, types[f.name], f.default) for f in fields(Strategy)]
    command.__signature__ = given.replace(parameters=[*own, *options])
    command.__annotations__ = {p.name: p.annotation for p in [*own, *options]} | {"return": None}
    return command


def _option(name: str, kind: type, default: object) -> inspect.Parameter:
    """Make an option. A boolean one is a flag, named for what it changes: `--no-...` if the default is True."""
    values = f": {', '.join(CHOICES[name])}" if name in CHOICES else ""
    otherwise = "" if kind is bool else f" (default: {default})"
    words = f"{HELP[name]}{values}{otherwise}"
    more = {"parser": _number_or_all if name == "shard_size" else whole_number} if name in WHOLE_NUMBERS else {}
    name = f"{_OFF}{name}" if default is True else name
    info = typer.Option(f"--{name.replace('_', '-')}", help=words, rich_help_panel="Strategy", metavar="", **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def chosen_fields(options: dict) -> dict:
    """Return the fields of a Strategy whose options were given."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name.removeprefix(_OFF): False if name.startswith(_OFF) else value for name, value in given.items()}


def _number_or_all(text: str) -> int | str:
    return text if text in ("all", "-1") else whole_number(text)
