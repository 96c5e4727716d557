"""The parts of a proof: what each one runs, how long it may take, and which of its figures show that it did not hold.

A part measures in a process of its own and writes figures; `complaints` reads them afterwards. So a part that hangs or
crashes is one line of the record, and the others run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardlab.tier import Tier

MEMORY_GOAL = 0.05  # largest difference between planned and measured peak bytes, as a share
WHOLE_GPU = ("model", "sharding", "precision", "recompute", "micro_batch", "seq_len")  # what a row is called by
LOSS_GOAL = 1e-3  # largest difference between the losses of ours and torch's, over the first five steps


@dataclass(frozen=True)
class Part:
    """One thing to run. `name` is what it measures, and after a colon the notebook or lab that it takes."""

    name: str
    claim: str  # what holds if it has no complaint
    limit_s: float
    devices: tuple[str, ...] = ("cpu", "cuda")  # on which it means anything


def parts(tier: Tier, lessons: Iterable[str], labs: Iterable[str]) -> list[Part]:
    """List the parts for a tier, the quick ones first."""
    labs = list(labs)
    found = [
        Part("machine", "the machine has all that the course needs", 300),
        Part("engines", "our engines train, hold and send what torch's do, and what the formulas say", 900),
        Part("nccl alone", "the same on one rank, under NCCL", 600, ("cuda",)),
        Part("streams", "CUDA's own sanitizer sees no race between streams in our engines", 900, ("cuda",)),
        Part("planner", "the planner knows the peak of a rank's memory", 900),
        Part("whole gpu", "and that of larger models on one GPU, whose steps it forecasts", 600, ("cuda",)),
        *(Part(f"solution:{lab}", "its solution gets every point", 900) for lab in labs),
        *(
            Part(f"class:{lab}", "right submissions get every point, wrong ones lose those that they must", 900)
            for lab in labs
        ),
        *(
            Part(f"lesson:{lesson}", "it runs to its end, and its prose agrees with its cells", 900)
            for lesson in lessons
        ),
    ]
    return [part for part in found if tier.device in part.devices]


def complaints(name: str, figures: dict) -> list[str]:
    """Return what did not hold by a part's figures, one sentence each; an empty list if all held."""
    return list(_READERS[name.partition(":")[0]](figures))


def _machine(figures: dict) -> Iterator[str]:
    for finding in figures["findings"]:
        if finding["needed"] and not finding["ok"]:
            yield f"{finding['what']}: {finding['found']}: {finding['remedy']}"


def _engines(figures: dict) -> Iterator[str]:
    for row in figures["rows"]:
        if not row["max_loss_difference"] <= LOSS_GOAL:
            yield f"{row['engine']}: losses differ from torch's by {row['max_loss_difference']:.2g}"
        if broken := row["ours"]["broken"]:
            yield f"{row['engine']}: its step breaks {', '.join(broken)}"
    if not figures["rows"]:
        yield "no engine was compared"


def _planner(figures: dict) -> Iterator[str]:
    for row in figures["rows"]:
        if abs(row["planned_bytes"] / row["measured_bytes"] - 1) > MEMORY_GOAL:
            words = f"{row['planned_bytes'] / 2**20:.1f} MiB planned, {row['measured_bytes'] / 2**20:.1f} measured"
            yield f"{row.get('strategy') or ' '.join(str(row[k]) for k in WHOLE_GPU)}: {words}"
    if not figures["rows"]:
        yield "nothing was planned"


def _solution(figures: dict) -> Iterator[str]:
    for row in figures["labs"]:
        if row["points"] != row["of"]:
            yield f"{row['points']:g} of {row['of']:g} points"
        yield from row["problems"]
    if not figures["labs"]:
        yield "no solution was graded"


def _class(figures: dict) -> Iterator[str]:
    for sample, words in figures["surprises"].items():
        yield f"{sample}: {'; '.join(words)}"
    if not figures["right ones"] or not figures["wrong ones"]:
        yield "no submission of one kind was judged"


def _lesson(figures: dict) -> Iterator[str]:
    yield from figures["problems"]


_READERS: dict[str, Callable[[dict], Iterator[str]]] = {
    "machine": _machine,
    "engines": _engines,
    "nccl alone": _engines,
    "streams": _engines,
    "planner": _planner,
    "whole gpu": _planner,
    "solution": _solution,
    "class": _class,
    "lesson": _lesson,
}
