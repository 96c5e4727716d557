"""`shardlab prove`: the command, and what each of its parts measures in a process of its own.

python -m shardcourse.cli.prove NAME TIER FILE     measure one part and write its figures
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

BENCHMARKS = "lib/benchmarks"


def prove_command(
    tier: Annotated[str | None, typer.Option(help="cpu, cpu8, gpu1, ...; detected if left out")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="parts whose names begin so; may be given more than once")
    ] = None,
    samples: Annotated[int, typer.Option(help="submissions of each lab's class that are judged; 0: all")] = 4,
    again: Annotated[bool, typer.Option("--again", help="also what has run before on the same sources")] = False,
    readme: Annotated[bool, typer.Option("--readme", help="run nothing: write README's table of all records")] = False,
) -> None:
    """Run everything on this machine: engines, lessons, labs, right and wrong submissions, the planner; write a record.

    When it is stopped, call it again: it goes on. The exit status is 0 if all held.
    """
    from shardcourse.lessons.folders import build, shown
    from shardcourse.prove.page import name_of, page, record_of, records_in, with_table
    from shardcourse.prove.parts import parts
    from shardcourse.prove.runner import run_parts, source_key
    from shardcourse.repository import ROOT
    from shardlab.tier import detect

    console = Console()
    if readme:
        file = ROOT / "README.md"
        file.write_text(with_table(file.read_text(encoding="utf-8"), records_in(ROOT / BENCHMARKS)), encoding="utf-8")
        return
    try:
        found = detect(tier)
    except (ValueError, RuntimeError) as error:
        print(f"shardlab prove: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    lessons = [file.stem for file in sorted((ROOT / "course").glob("*.ipynb"))]
    labs = sorted(folder.name for folder in (ROOT / "solutions").glob("lab*"))
    everything = parts(found, lessons, labs)
    wanted = [p for p in everything if not only or any(p.name.startswith(o) for o in only)]
    if not wanted:
        print(f"shardlab prove: no part begins with {', '.join(only or [])}", file=sys.stderr)
        raise typer.Exit(2)
    key = source_key() + f" {samples} samples"
    folder = build("prove") / found.name

    def tell(part, outcome) -> None:
        words = "[green]held[/]" if outcome["held"] else "[red]did not hold[/]"
        console.print(f"{part.name}: {words}, {outcome['seconds']:.0f} s")
        for complaint in outcome["complaints"]:
            console.print(f"    {escape(complaint)}", highlight=False)

    def command(part, file) -> list[str]:
        return [sys.executable, "-m", "shardcourse.cli.prove", part.name, found.name, str(samples), str(file)]

    outcomes = run_parts(wanted, folder, command, "" if again else key, tell)
    record = record_of(found, everything, outcomes, key)
    target = build("prove") / f"{name_of(record)}.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text(page(record), encoding="utf-8")
    console.print(f"{record['held']} of {record['of']} parts held: {shown(target.with_suffix('.md'))}")
    raise typer.Exit(not all(outcome["held"] for outcome in outcomes.values()))


def measure(name: str, tier_name: str, samples: int) -> dict:
    """Measure one part; return its figures, which `shardcourse.prove.parts` reads."""
    from shardlab.tier import detect

    tier = detect(tier_name)
    what, _, which = name.partition(":")
    if what == "machine":
        from shardcourse.cli.doctor import examine

        return {"findings": [finding.as_json() for finding in examine()]}
    if what in ("engines", "nccl alone", "streams"):
        return _engines(what, tier)
    if what == "planner":
        from shardbench import plan_here

        return plan_here.run(tier.name)
    if what == "whole gpu":
        from shardbench import plan_one_gpu

        return plan_one_gpu.run()
    if what == "solution":
        from grading.bench import cost_of_labs

        return cost_of_labs.run([which], tier.name)
    if what == "class":
        from grading.bench import judge_samples

        return judge_samples.run(which, at_a_time=1, tier=tier.name, at_most=samples or None)
    from shardcourse.lessons.folders import build
    from shardcourse.lessons.run import run_notebook
    from shardcourse.repository import ROOT

    target = build("prove") / tier.name / f"{which}.ipynb"
    return asdict(run_notebook(ROOT / "course" / f"{which}.ipynb", target, {"tier": tier.name}))


def _engines(what: str, tier) -> dict:
    from shardbench import parallel
    from shardbench.visible_waits import VARIABLE as SANITIZER

    size = {"model": "125M", "seq_len": 256} if tier.device == "cuda" else {"model": "3M", "seq_len": 64}
    if tier.world_size > tier.gpus > 0:  # ranks that share a GPU send through the host
        size["model"] = "10M"
    options: dict = {"world_size": tier.world_size, "pairs": 10, "stages": (), "device": tier.device, **size}
    if what == "nccl alone":
        options |= {"world_size": 1, "pairs": 3}
    if what == "streams":
        os.environ[SANITIZER] = "1"  # ranks read it when they import torch
        options |= {"pairs": 1, "model": "3M", "seq_len": 64}
    return parallel.run(**options)


if __name__ == "__main__":
    figures = measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    Path(sys.argv[4]).write_text(json.dumps(figures, indent=1), encoding="utf-8")
