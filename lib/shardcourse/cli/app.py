"""The command line, for the Makefile, for GPU nodes and for batch scripts."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardcourse.cli.claims import claims_command
from shardcourse.cli.lab import FOR_JUPYTERLAB, lab_command
from shardcourse.cli.prove import prove_command
from shardcourse.cli.run import WithPairs, run_command
from shardcourse.cli.why import why_command
from shardplan.command import plan_command
from shardplan.command_options import PlanCommand

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Sharded data-parallel training, taught and graded.")
bench = typer.Typer(no_args_is_help=True, help="Measure ours and torch's, interleaved in one run.")
app.add_typer(bench, name="bench")
in_a_log = not sys.stdout.isatty() and "COLUMNS" not in os.environ
console = Console(width=110 if in_a_log else None)  # rich would take 80 and break words

Version = Annotated[
    bool, typer.Option("--version", is_eager=True, help="print shardlab's, Python's and torch's version")
]
Lab = Annotated[str | None, typer.Argument(help="for example lab2_ddp; all labs if left out")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="write the figures to this file")]


@app.callback(invoke_without_command=True)
def main(version: Version = False) -> None:
    if version:
        import platform
        from importlib.metadata import version as version_of

        names = "shardlab", "torch", "nbgrader", "jupyterlab"
        print(", ".join(f"{name} {version_of(name)}" for name in names) + f", Python {platform.python_version()}")
        raise typer.Exit


@app.command()
def demo() -> None:
    """Grade a small class that hands in lab 2: right, slow, memory-hungry, wrong, crashing, hanging."""
    from grading.demo import run_demo

    raise typer.Exit(not run_demo(console))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Look at this machine: what works, what doesn't, what to do about it, and which tier you get."""
    from shardcourse.cli.doctor import examine

    findings = examine()
    if as_json:
        print(json.dumps([f.as_json() for f in findings], indent=2))
    else:
        table = Table("", "", "found", "what to do", header_style="bold")
        for f in findings:
            colour = {"ok": "green", "!!": "red", "--": "yellow"}[f.mark]
            table.add_row(f"[{colour}]{f.mark}[/]", f.what, escape(f.found), "" if f.ok else escape(f.remedy))
        console.print(table)
    raise typer.Exit(not all(f.ok or not f.needed for f in findings))


app.command("plan", cls=PlanCommand)(plan_command)
app.command("claims")(claims_command)
app.command("run", cls=WithPairs)(run_command)
app.command("prove")(prove_command)
app.command("why")(why_command)
app.command("lab", context_settings=FOR_JUPYTERLAB)(lab_command)


@app.command()
def tidy(notebooks: Annotated[list[Path] | None, typer.Argument(help="all lessons if left out")] = None) -> None:
    """Rewrite lessons in the form in which they are committed: no outputs, ids that follow from the source."""
    from shardcourse.lessons.tidy import tidy as tidy_up
    from shardcourse.repository import ROOT

    for notebook in notebooks or sorted((ROOT / "course").glob("*.ipynb")):
        if tidy_up(notebook):
            print(f"tidied {notebook.name}")


@app.command()
def book() -> None:
    """Write the course as a site to read, build/book/html; lessons that were not run as they stand are run first."""
    from shardcourse.lessons.book import make_book

    raise typer.Exit(not make_book(console))


@app.command()
def release(lab: Lab = None) -> None:
    """Make the students' notebooks in labs/ from solutions/."""
    from grading.instructor_commands import release_labs

    raise typer.Exit(not release_labs(lab, console))


@app.command()
def kit(
    out: Annotated[Path, typer.Option(help="a new folder")],
    seeds: Annotated[int, typer.Option(min=1, help="draws that students' checks choose from")] = 4,
) -> None:
    """Make the folder that students get: course, labs, library and `check`, without solutions (some ten minutes)."""
    from grading.student_kit.make import KitError, make_kit
    from grading.student_kit.record_reference_results import draw_seeds

    with _in_words("kit", KitError):
        make_kit(out, draw_seeds(seeds), show=lambda words: console.print(words, highlight=False, markup=False))


@app.command()
def grade(
    lab: Lab = None,
    student: Annotated[list[str] | None, typer.Option(help="only this one; may be given more than once")] = None,
    again: Annotated[bool, typer.Option("--again", help="also what has not changed since it was graded")] = False,
    at_a_time: Annotated[int, typer.Option(min=1, help="submissions that are judged side by side")] = 1,
    cluster: Annotated[str | None, typer.Option(help="slurm, or local: jobs of submitit; else this process")] = None,
    option: Annotated[list[str] | None, typer.Option(help="of the cluster's jobs, as partition=gpu")] = None,
    explain: Annotated[str | None, typer.Option(help="grade nothing: say why this student has these points")] = None,
) -> None:
    """Grade what lies in grading/submitted/<student>/<lab>/, and print the table. When killed, call it again."""
    from grading.instructor_commands import explain as explain_grade
    from grading.instructor_commands import grade_labs

    if explain is not None:
        explain_grade(lab, explain, console)
        return
    options = dict(_pair(text) for text in option or [])
    how = {"at_a_time": at_a_time, "cluster": cluster, "options": options}
    raise typer.Exit(not grade_labs(lab, student or [], console, again, **how))


@app.command()
def report(lab: Lab = None) -> None:
    """Report how a class did: points, failed checks and why, slow or noisy runs, similar submissions."""
    from grading.instructor_commands import report_labs

    report_labs(lab, console)


@app.command()
def export(form: Annotated[str, typer.Option(help="csv, canvas or moodle")] = "csv") -> None:
    """Print the grades of the whole course as a table that a learning platform imports."""
    from grading.instructor_commands import export_grades

    with _in_words("export", ValueError):
        print(export_grades(form), end="")


@app.command()
def feedback(lab: Lab = None) -> None:
    """Write grading/feedback/<student>/<lab>/<lab>.html for everybody who was graded."""
    from grading.instructor_commands import write_feedback

    raise typer.Exit(not write_feedback(lab, console))


def _benchmark(name: str, words: str) -> None:
    """Add a benchmark that has no options of its own."""

    @bench.command(name, help=words)
    def run(json_file: JsonFile = None) -> None:
        _write(_measure(name), json_file)


_benchmark("launch", "Time the start of four CPU ranks: our launch, first and warm, compared with torchrun.")
_benchmark("live", "Compare live ranks with ipyparallel and nbdistributed, where installed: start, cell, wait, error.")
_benchmark("ddp", "Compare our DDP with torch's: step time, peak bytes, traffic.")
_benchmark(
    "parallel",
    "Compare our sharding engines with torch's, and DeepSpeed's if installed: time, losses, bytes held and sent.",
)


@bench.command("earlier")
def bench_earlier(commit: Annotated[str, typer.Argument(help="an earlier one")], json_file: JsonFile = None) -> None:
    """Compare our sharding engines with themselves at an earlier commit: time, losses, peak bytes, bytes sent."""
    from shardbench.earlier import CommitError

    with _in_words("bench earlier", CommitError):
        _write(_measure("earlier", commit=commit), json_file)


_benchmark(
    "interconnect",
    "Compare the simulated network's times with formulas, and measure what buckets, overlap and hybrid shards gain.",
)
_benchmark(
    "shaped", "Compare the simulated network with a real one that Linux slows down, if this machine allows that."
)


@bench.command("plan")
def bench_plan(
    json_file: JsonFile = None,
    rows: Annotated[Path | None, typer.Option(help="every row that was compared, as JSON")] = None,
) -> None:
    """Compare the planner with real ranks, with a trace of the real FSDP2, and with runs that others published."""
    from shardbench.plan_summary import summarise

    result = _measure("plan")
    _write(result, rows)
    _write(summarise(result), json_file)


_benchmark("labs", "Grade every lab's solution: points and seconds.")


@bench.command("first")
def bench_first(
    json_file: JsonFile = None,
    tests: Annotated[int, typer.Option(help="how many times make test runs; its median counts")] = 3,
    busy_tests: Annotated[int, typer.Option(help="and how many times beside four processes that compute")] = 0,
) -> None:
    """Time a fresh clone until its first executed cell, the demo's table, the end of the tests. (Half an hour.)"""
    _write(_measure("first", tests=tests, busy_tests=busy_tests), json_file)


@bench.command("grader")
def bench_grader(
    json_file: JsonFile = None,
    part: Annotated[list[str] | None, typer.Option(help="only this part; may be given more than once")] = None,
) -> None:
    """Test the grader: is it fair, does it survive kills and attacks, does it catch all mutants, how fast? (Hours.)"""
    from grading.bench.grader_benchmarks import run

    run(part, json_file)


@bench.command("all")
def bench_all(json_file: JsonFile = None) -> None:
    """Run all benchmarks but `first` and `grader`, into one file."""
    names = ("launch", "live", "ddp", "parallel", "interconnect", "shaped", "plan", "labs")
    _write({name: _measure(name) for name in names}, json_file)


@contextmanager
def _in_words(command: str, kind: type[Exception]) -> Iterator[None]:
    """End the program with an error's words alone if it is of this kind."""
    try:
        yield
    except kind as error:
        print(f"shardlab {command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"an option is name=value, and this is {text!r}")
    return name, value


def _measure(name: str, **options) -> dict:
    module = import_module("grading.bench.cost_of_labs" if name == "labs" else f"shardbench.{name}")
    with console.status(f"measuring: {name}"):
        result = module.run(**options)
    module.show(result)
    return result


def _write(result: dict, json_file: Path | None) -> None:
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
