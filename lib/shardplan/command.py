"""Command `shardlab plan llama-3.1-8b --machine H100 --gpus 64 ...`: every field of a Strategy is an option.

If an option is not given, `Strategy`'s default holds, or the search chooses. What people type for a name or an option
is in `aliases`. A refusal ends with options to add, with which the same command plans: each was tried.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from shardplan.command_mistakes import mistakes_in_one_line
from shardplan.command_options import chosen_fields, whole_number, with_options

LONG_S = 2.0  # a search that takes longer shows its progress

Model = Annotated[
    list[str] | None, typer.Argument(help="a name such as llama-3.1-8b, or the path of a Hugging Face config.json")
]
OnMachine = Annotated[str, typer.Option("--machine", help="a machine, or a card: H100, 'RTX 4090 x 4', p5.48xlarge")]
Gpus = Annotated[
    int | None, typer.Option("--gpus", parser=whole_number, metavar="", help="number of GPUs; default: one node")
]
Measured = Annotated[
    list[str] | None,
    typer.Option(
        help="what your own run of this plan reached: tokens_per_s=5200 (of a GPU; or job_tokens_per_s) memory=61GiB "
        "(as nvidia-smi shows; or allocated, reserved). The plan and its advice follow it"
    ),
]
Script = Annotated[
    str | None,
    typer.Option("--script", metavar="FILE.py[:NAME]", help="a torch module of your own, or a function that makes it"),
]
Batch = Annotated[
    str | None,
    typer.Option(metavar="SHAPE", help="with --script: a GPU's inputs: 8x512, 8x3x224x224, '8x512,8x512:float32'"),
]
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
    model: Model = None,
    machine: OnMachine = "dgx-h100",
    gpus: Gpus = None,
    script: Script = None,
    batch: Batch = None,
    search: DoSearch = False,
    best: Best = 5,
    global_batch: GlobalBatch = None,
    dollars_per_hour: Budget = None,
    dollars_per_gpu_hour: Price = None,
    tokens: Tokens = None,
    terms: Terms = False,
    trace: Trace = False,
    measured: Measured = None,
    json_file: JsonFile = None,
    **strategy,
) -> None:
    """Will it fit, how fast will it be, and what would help? Memory, time and links of one GPU, by arithmetic.

    Understood too: --fsdp, --hsdp, --ddp, --zero3, --tp, --pp, --cp, --batch-size, --strategy ZeRO-3 and the like.
    """
    from shardsim.machines import machine as machine_named

    chosen = chosen_fields(strategy)
    console = Console(stderr=json_file == "-", highlight=False)
    with mistakes_in_one_line(partial(_try, script, model, machine, gpus, chosen)):
        if script:
            others = {"model": model, "search": search, "trace": trace, "measured": measured, "tokens": tokens}
            _refuse("not for --script: leave it out", **others, terms=terms, global_batch=global_batch)
            _write(_plan_script(console, script, batch, machine_named(machine, gpus), gpus, **chosen), json_file)
            return
        _refuse("for a model of your own: add --script FILE.py", batch=batch)
        model, on = _named(model), machine_named(machine, gpus)
        price = _Price(tokens, dollars_per_gpu_hour)
        gpus = _how_many(gpus, on, dollars_per_hour, dollars_per_gpu_hour, search)
        if search:
            _refuse("of one plan: leave out --search", terms=terms, trace=trace)
            on = _as_learnt_before(on, measured)
            figures = _search(console, best, price, model, on, gpus=gpus, global_batch=global_batch, **chosen)
        else:
            _refuse("for a search: add --search", global_batch=global_batch, dollars_per_hour=dollars_per_hour)
            figures = _plan(console, terms, trace, price, measured, model, on, gpus, **chosen)
        _write(figures, json_file)


def _named(words: list[str] | None) -> str:
    """Return the model's name, which may be several words."""
    if not words:
        raise ValueError("which model? Such as: shardlab plan llama-3.1-8b --machine H100 --gpus 8")
    return " ".join(words)


class _Price:
    """Cost of a plan's training, if the user gave its number of tokens."""

    def __init__(self, tokens: float | None, dollars_per_gpu_hour: float | None) -> None:
        for name, value, example in (("tokens", tokens, "1e12"), ("dollars_per_gpu_hour", dollars_per_gpu_hour, "2.5")):
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value:g}, but it must be above 0, such as {example}")
        self.tokens, self.dollars = tokens, dollars_per_gpu_hour

    def of(self, plan):
        from shardplan.search.training_cost import cost

        return cost(plan, self.tokens, self.dollars) if self.tokens else None


def _plan(console: Console, terms: bool, trace: bool, price: _Price, measured, *args, **strategy) -> dict:
    from shardplan.api import plan_of, setup_of
    from shardplan.calibration import learn, read
    from shardplan.tables import peak_table, plan_report, trace_table

    learnt = learn(setup_of(*args, **strategy), read(measured or []))
    found = plan_of(learnt.setup)
    costs, figures = price.of(found), found.as_json()
    if learnt.words:
        figures["learnt"] = list(learnt.words)
    console.print(plan_report(found, costs, learnt.words))
    if terms:
        console.print(peak_table(found.memory))
    if trace:
        from shardplan.trace import trace_memory

        with console.status("tracing through the engines themselves"):
            traced = trace_memory(found.setup)
        console.print(trace_table(found.memory.peak, traced.peak))
        figures["trace"] = {"peak": traced.peak.name, "bytes": traced.peak.by_category(), "seconds": traced.seconds}
    return figures | _cost_as_json(costs)


def _plan_script(console: Console, script: str, batch: str | None, on, gpus: int | None, **chosen) -> dict:
    from shardplan.own_model import own_report, plan_model

    if not batch:
        raise ValueError("which batch? Write the shape of a GPU's input, such as --batch 8x512")
    with console.status(f"tracing {script}"):
        found = plan_model(script, batch, on, on.gpus_per_node if gpus is None else gpus, **chosen)
    console.print(own_report(found, batch))
    return found.as_json()


def _as_learnt_before(machine, measured: list[str] | None):
    from shardplan.calibration import OF_ANY_PLAN, as_before, read

    pairs = read(measured or [])
    if of_one_plan := [name for name in pairs if name not in OF_ANY_PLAN]:
        raise ValueError(
            f"measured {of_one_plan[0]} is of one plan: leave out --search, or give what it taught: pace=..."
        )
    return as_before(machine, pairs)


def _search(console: Console, most: int, price: _Price, *args, **options) -> dict:
    from shardplan.api import plan_of
    from shardplan.search.strategies import fewest_gpus, nearest_global_batch, search
    from shardplan.tables import plan_report, proposal_lines, search_table

    found = search(*args, progress=lambda groups: _late_progress(groups, console), **options)
    if not found.n_tried:
        nearest = nearest_global_batch(*args, **options)
        problem = f"global_batch={options['global_batch']}: no strategy has just so many sequences a step"
        raise ValueError(f"{problem}; this would do: --global-batch {nearest}")
    if not found.best:
        options.pop("global_batch")
        more = fewest_gpus(*args, **options)
        nearest = f"; this would do: --gpus {more}" if more else ", nor with more of these GPUs"
        raise ValueError(f"gpus={options['gpus']}: none of {found.n_tried} strategies fits{nearest}")
    console.print(search_table(found, most, [price.of(plan) for plan in found.fitting[:most]]))
    for line in proposal_lines(found):
        console.print(line)
    best = plan_of(found.best.setup)
    console.print("\nThe fastest of the search:" if found.proposals else "\nThe fastest:", style="bold")
    console.print(plan_report(best, price.of(best)))
    plans = [plan.as_json() | _cost_as_json(price.of(plan)) for plan in found.fitting[:most]]
    proposed = [p.plan.as_json() | {"gain": p.gain, "reasons": p.options} for p in found.proposals]
    counts = {"n_tried": found.n_tried, "n_fitting": len(found.fitting), "n_maybe": found.n_maybe}
    return counts | {"best": plans, "proposals": proposed}


def _cost_as_json(costs) -> dict:
    return {"cost": asdict(costs)} if costs else {}


def _how_many(gpus: int | None, on, budget: float | None, price: float | None, search: bool) -> int:
    from shardplan.search.training_cost import affordable_gpus

    if not search or budget is None:
        return on.gpus_per_node if gpus is None else gpus
    if gpus is not None:
        raise ValueError("gpus and dollars_per_hour are two budgets: leave out --gpus, or --dollars-per-hour")
    if price is None:
        raise ValueError(
            "dollars_per_gpu_hour is missing: what does one GPU cost you? Such as --dollars-per-gpu-hour 2.5"
        )
    return affordable_gpus(budget, price, on)


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise ValueError(f"{name} is {why}")


def _late_progress(groups: list, console: Console) -> Iterator:
    """Yield the groups, with a progress bar after LONG_S seconds."""
    began_s = time.monotonic()
    for i, group in enumerate(groups):
        if time.monotonic() - began_s > LONG_S:
            yield from track(groups[i:], "planning", console=console, transient=True)
            return
        yield group


def _try(script: str | None, model: list[str] | None, machine: str, gpus: int | None, chosen: dict, fix: dict) -> None:
    """Make the setup of a command whose options are changed by a fix."""
    from shardplan.api import setup_of
    from shardplan.own_model import own_setup
    from shardsim.machines import machine as machine_named

    gpus = fix.get("world_size", gpus)
    on = machine_named(machine, gpus)
    fields = chosen | {name: value for name, value in fix.items() if name != "world_size"}
    make = partial(own_setup, script) if script else partial(setup_of, _named(model))
    make(on, on.gpus_per_node if gpus is None else gpus, **fields)


def _write(figures: dict, json_file: str | None) -> None:
    text = json.dumps(figures, indent=2)
    if json_file == "-":
        print(text)
    elif json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")


plan_command = with_options(plan_command)
