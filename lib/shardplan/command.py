"""Command `shardlab plan MODEL --machine dgx-h100 --gpus 64 ...`: every field of a Strategy is an option.

If an option is not given, `Strategy`'s default holds, or the search chooses.
"""

import inspect
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, get_type_hints

import typer
from rich.console import Console
from rich.progress import track

from shardplan.config_fields import ConfigWarning
from shardplan.strategy import CHOICES, Strategy

HELP = {name: hint.__metadata__[0] for name, hint in get_type_hints(Strategy, include_extras=True).items()}
_OFF = "no_"
LONG_S = 2.0  # a search that takes longer shows its progress

Model = Annotated[str, typer.Argument(help="a name such as 8B, or the path of a Hugging Face config.json")]
OnMachine = Annotated[str, typer.Option("--machine", help="a machine's name, or a GPU's: 'H100-80GB x 8'")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="number of GPUs; default: one node")]
DoSearch = Annotated[
    bool, typer.Option("--search", help="find the best strategies; the options given stay as they are")
]
Best = Annotated[int, typer.Option("--best", min=1, help="with --search: number of strategies to show")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="with --search: sequences in a step")]
Budget = Annotated[float | None, typer.Option("--dollars-per-hour", help="with --search: budget for all GPUs")]
Price = Annotated[float | None, typer.Option("--dollars-per-gpu-hour", help="price of one GPU")]
Tokens = Annotated[
    float | None, typer.Option("--tokens", help="tokens to train on, such as 15e12; adds the hours to the plan")
]
Terms = Annotated[bool, typer.Option("--terms", help="show the terms of the peak")]
Trace = Annotated[bool, typer.Option("--trace", help="also trace memory through the engines themselves")]
JsonFile = Annotated[str | None, typer.Option("--json", help="write the plan to this file; - for the terminal")]


def plan_command(
    model: Model,
    machine: OnMachine = "dgx-h100",
    gpus: Gpus = None,
    search: DoSearch = False,
    best: Best = 5,
    global_batch: GlobalBatch = None,
    dollars_per_hour: Budget = None,
    dollars_per_gpu_hour: Price = None,
    tokens: Tokens = None,
    terms: Terms = False,
    trace: Trace = False,
    json_file: JsonFile = None,
    **strategy,
) -> None:
    """Will it fit, how fast will it be, and what would help? Memory, time and links of one GPU, by arithmetic."""
    from shardsim.machines import machine as machine_named

    chosen = _chosen(strategy)
    console = Console(stderr=json_file == "-", highlight=False)
    with _mistakes_in_one_line():
        on = machine_named(machine)
        price = _Price(tokens, dollars_per_gpu_hour)
        gpus = _how_many(gpus, on, dollars_per_hour, dollars_per_gpu_hour, search)
        if search:
            _refuse("of one plan: leave out --search", terms=terms, trace=trace)
            figures = _search(console, best, price, model, on, gpus=gpus, global_batch=global_batch, **chosen)
        else:
            _refuse("for a search: add --search", global_batch=global_batch, dollars_per_hour=dollars_per_hour)
            figures = _plan(console, terms, trace, price, model, on, gpus, **chosen)
        _write(figures, json_file)


class _Price:
    """Cost of a plan's training, if the user gave its number of tokens."""

    def __init__(self, tokens: float | None, dollars_per_gpu_hour: float | None) -> None:
        for name, value in (("tokens", tokens), ("dollars_per_gpu_hour", dollars_per_gpu_hour)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value:g}, but it must be above 0")
        self.tokens, self.dollars = tokens, dollars_per_gpu_hour

    def of(self, plan):
        from shardplan.search.training_cost import cost

        return cost(plan, self.tokens, self.dollars) if self.tokens else None


def _plan(console: Console, terms: bool, trace: bool, price: _Price, *args, **strategy) -> dict:
    from shardplan.api import plan
    from shardplan.tables import peak_table, plan_report, trace_table

    found = plan(*args, **strategy)
    costs, figures = price.of(found), found.as_json()
    console.print(plan_report(found, costs))
    if terms:
        console.print(peak_table(found.memory))
    if trace:
        from shardplan.trace import trace_memory

        with console.status("tracing through the engines themselves"):
            traced = trace_memory(found.setup)
        console.print(trace_table(found.memory.peak, traced.peak))
        figures["trace"] = {"peak": traced.peak.name, "bytes": traced.peak.by_category(), "seconds": traced.seconds}
    return figures | _cost_as_json(costs)


def _search(console: Console, most: int, price: _Price, *args, **options) -> dict:
    from shardplan.api import plan_of
    from shardplan.search.strategies import search
    from shardplan.tables import plan_report, search_table

    found = search(*args, progress=lambda groups: _late_progress(groups, console), **options)
    if not found.n_tried:
        raise ValueError(f"global_batch={options['global_batch']}: no strategy has just so many sequences a step")
    if not found.best:
        raise ValueError(f"gpus={options['gpus']}: none of {found.n_tried} strategies fits; try twice as many")
    console.print(search_table(found, most, [price.of(plan) for plan in found.fitting[:most]]))
    best = plan_of(found.best.setup)
    console.print("\nThe fastest:", style="bold")
    console.print(plan_report(best, price.of(best)))
    plans = [plan.as_json() | _cost_as_json(price.of(plan)) for plan in found.fitting[:most]]
    return {"n_tried": found.n_tried, "n_fitting": len(found.fitting), "n_maybe": found.n_maybe, "best": plans}


def _cost_as_json(costs) -> dict:
    return {"cost": asdict(costs)} if costs else {}


def _how_many(gpus: int | None, on, budget: float | None, price: float | None, search: bool) -> int:
    from shardplan.search.training_cost import affordable_gpus

    if not search or budget is None:
        return on.gpus_per_node if gpus is None else gpus
    if gpus is not None:
        raise ValueError("gpus and dollars_per_hour are two budgets: give one")
    if price is None:
        raise ValueError("dollars_per_gpu_hour is missing: what does one GPU cost you?")
    return affordable_gpus(budget, price, on)


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is {why}")


def _late_progress(groups: list, console: Console) -> Iterator:
    """Yield the groups, with a progress bar after LONG_S seconds."""
    began_s = time.monotonic()
    for i, group in enumerate(groups):
        if time.monotonic() - began_s > LONG_S:
            yield from track(groups[i:], "planning", console=console, transient=True)
            return
        yield group


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """Print a user's mistake, with the field and the nearest value, and exit with code 2. Print a config's warnings."""
    show = warnings.showwarning

    def one_line(message, category, *place, **more) -> None:
        if issubclass(category, ConfigWarning):
            print(f"shardlab plan: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **more)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = one_line
            yield
    except (ValueError, OSError) as error:
        words = str(error).replace("world_size", "gpus")  # the option's name
        print(f"shardlab plan: {words}", file=sys.stderr)
        raise typer.Exit(2) from None


def _write(figures: dict, json_file: str | None) -> None:
    text = json.dumps(figures, indent=2)
    if json_file == "-":
        print(text)
    elif json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------- an option for every field


def _with_options(command: Callable) -> Callable:
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
    name = f"{_OFF}{name}" if default is True else name
    info = typer.Option(f"--{name.replace('_', '-')}", help=words, rich_help_panel="Strategy", metavar="")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _chosen(options: dict) -> dict:
    """Return the fields of a Strategy whose options were given."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name.removeprefix(_OFF): False if name.startswith(_OFF) else value for name, value in given.items()}


plan_command = _with_options(plan_command)
