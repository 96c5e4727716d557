"""Tables for a terminal of 80 columns: a plan's memory, time, bottleneck and advice; the best plans of a search."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardplan.advice.bottleneck import largest_terms, memory_in_words, time_in_words
from shardplan.explained import explained
from shardplan.formatting import GIB, duration, gib, percent, seconds
from shardplan.planned_job import Setup
from shardplan.records import MemoryPlan, Moment, Plan, SpeedPlan
from shardplan.search.strategies import Search
from shardplan.search.training_cost import Cost
from shardplan.strategy import Strategy

WIDTH = 80
_BAR = 22
_COLOURS = {"yes": "green", "maybe": "yellow", "no": "red"}
_VERDICTS = {"yes": "fits", "maybe": "may fit, or not", "no": "does not fit"}
# At most 80 columns
RESERVED = "Allocated: by tensors. Reserved: what PyTorch holds of the card, with gaps."
_LINKS = {"inside": "inside the node", "between": "between nodes", "host": "to the host", "nvme": "to NVMe"}


def plan_report(plan: Plan, costs: Cost | None = None, learnt: Sequence[str] = ()) -> Group:
    """Report all that a plan says. Without a price `costs` has no dollars. `learnt`: from a measured run."""
    parts: list[RenderableType] = [
        title(plan.setup),
        *(_below("Measured: ", words) for words in learnt),
        verdict(plan),
        "",
        categories_table(plan),
        RESERVED,
        _below("At the peak, ", memory_in_words(plan) + "."),
        "",
        moments_table(plan),
        "",
        time_table(plan.speed),
        _below("Per GPU, ", speed_line(plan.speed)),
        _below("The job, ", job_line(plan)),
        _below("Sent by a GPU in a step, ", links_line(plan.speed)),
        *(_below(label, words) for label, words in explained(plan.setup)),
        *([_below("The training, ", cost_line(costs))] if costs else []),
        "",
        _below("Bottleneck: ", plan.bottleneck or time_in_words(plan)),
        *advice_lines(plan),
    ]
    return Group(*parts)


def title(setup: Setup) -> Text:
    """Title of a report: the model, the machines, and the choices that are not the defaults."""
    n, machine = setup.world_size, setup.machine
    gpus = "1 GPU" if n == 1 else f"{n:,} GPUs"
    nodes = f", {setup.nodes:,} nodes" if setup.nodes > 1 else ""
    text = Text(f"{setup.shape.name}", style="bold")
    active = f" ({setup.shape.active_params:,} for a token)" if setup.shape.experts else ""
    text.append(
        f", {setup.shape.n_params:,} parameters{active}, on {gpus} of {machine.name}{nodes}\n", style="not bold"
    )
    text.append(choices(setup.strategy), style="not bold")
    return text


def choices(strategy: Strategy) -> str:
    """List the choices that differ from the defaults, and always sharding, precision, micro_batch and seq_len."""
    told = ("sharding", "precision", "micro_batch", "seq_len")
    values = {f.name: (getattr(strategy, f.name), f.default) for f in fields(strategy)}
    return ", ".join(f"{name}={value}" for name, (value, default) in values.items() if name in told or value != default)


def verdict(plan: Plan) -> Text:
    low, high = plan.memory.device_bytes
    worst, best = plan.margin_bytes
    margin = f"{gib(worst)} to spare" if worst >= 0 else f"{gib(-worst)} short at worst"
    margin = f"{gib(-best)} short at best" if best < 0 else margin
    if plan.host_margin_bytes < 0:
        margin += f"; and a node's memory is {gib(-plan.host_margin_bytes)} short of what is offloaded"
    text = Text(_VERDICTS[plan.fits], style=f"bold {_COLOURS[plan.fits]}")
    held = f": {gib(low, unit=False)} to {gib(high)} of {gib(plan.setup.machine.memory_bytes)}, {margin}"
    return text.append(held, style="not bold default")


def categories_table(plan: Plan) -> Table:
    """Bytes at the peak, and what the allocator and CUDA add. A full bar may stand for more than the card has."""
    memory, size = plan.memory, plan.setup.machine.memory_bytes
    low, high = memory.reserved_bytes
    table = _table(("memory of a GPU", "left"), ("", "right"), (f"of its {gib(size)}", "left"))
    for name, n_bytes in memory.peak.by_category().items():
        if n_bytes > 1e-4 * memory.allocated_bytes:
            table.add_row(name.replace("_", " "), gib(n_bytes), _bar(n_bytes, size))
    table.add_section()
    table.add_row("allocated", gib(memory.allocated_bytes), _bar(memory.allocated_bytes, size))
    table.add_row("reserved by the allocator", _range(low, high), _bar(high, size))
    extra = plan.setup.machine.extra_bytes
    table.add_row(
        "CUDA, NCCL and libraries", gib(memory.context_bytes - extra), _bar(memory.context_bytes - extra, size)
    )
    if extra:
        table.add_row("measured beyond that", gib(extra), _bar(max(0.0, extra), size))
    table.add_row("in use, as nvidia-smi shows", _range(*memory.device_bytes), _bar(memory.device_bytes[1], size))
    for name, n_bytes in (("host memory", memory.host_bytes), ("NVMe", memory.nvme_bytes)):
        if n_bytes:
            table.add_row(f"beside it, {name}", gib(n_bytes), "")
    return table


def moments_table(plan: Plan) -> Table:
    """Table of the fullest moment of each kind."""
    memory = plan.memory
    size = memory.allocated_bytes
    table = _table(("over a step", "left"), ("", "right"), ("", "left"))
    for name, moment in stretches(memory.moments):
        peak = moment.n_bytes == memory.allocated_bytes
        style = "bold" if peak else ""
        table.add_row(
            name + (", the peak" if peak else ""), gib(moment.n_bytes), _bar(moment.n_bytes, size), style=style
        )
    return table


def stretches(moments: Sequence[Moment]) -> list[tuple[str, Moment]]:
    """Return (name, its fullest moment) in the order of a step. All blocks are one part: "forward of blocks".

    A name that occurs in both passes says in which: "all_gather of blocks, backward".
    """
    fullest: dict[tuple[str, str], Moment] = {}
    for moment in moments:
        key = moment.phase, re.sub(r"(\w) \d+", r"\1s", moment.name)
        fullest[key] = max(fullest.get(key, moment), moment, key=lambda m: m.n_bytes)
    times = Counter(name for _, name in fullest)
    return [(f"{name}, {phase}" if times[name] > 1 else name, m) for (phase, name), m in fullest.items()]


def peak_table(memory: MemoryPlan, most: int = 8) -> Table:
    """Table of the peak's terms, in their words, the largest first."""
    table = _table((f"{memory.peak.name}: what is live", "left"), ("", "right"))
    for words, n_bytes in largest_terms(memory.peak.terms, most):
        table.add_row(escape(words), gib(n_bytes))
    return table


def time_table(speed: SpeedPlan) -> Table:
    """Table of the parts of a step, which add up to its time."""
    table = _table((f"a step of {seconds(speed.step_s)}", "left"), ("", "right"), ("share", "right"), ("", "left"))
    for name, part_s in speed.parts_s.items():
        if part_s:
            table.add_row(name, seconds(part_s), percent(part_s / speed.step_s), _bar(part_s, speed.step_s))
    return table


def speed_line(speed: SpeedPlan) -> str:
    reached = f"MFU {speed.mfu:.1%}, HFU {speed.hfu:.1%}" if speed.hfu != speed.mfu else f"MFU {speed.mfu:.1%}"
    least, most = speed.tokens_per_s_range
    rate = f"{speed.tokens_per_s:,.0f} tokens/s ({least:,.0f} to {most:,.0f})"
    return f"{rate}, {speed.tokens:,.0f} tokens a step; {reached}."


def job_line(plan: Plan) -> str:
    """Speed of all GPUs together, and the global batch."""
    s, setup = plan.setup.strategy, plan.setup
    sequences = s.micro_batch * s.accumulation * setup.data_ranks // s.context
    batch = f"{sequences:,} sequences, {sequences * s.seq_len:,} tokens"
    return f"{plan.job_tokens_per_s:,.0f} tokens/s; global batch {batch}."


def links_line(speed: SpeedPlan) -> str:
    sent = [f"{_LINKS.get(name, name)} {gib(n_bytes)}" for name, n_bytes in speed.bytes_by_link.items() if n_bytes]
    return (", ".join(sent) or "nothing") + "."


def cost_line(costs: Cost) -> str:
    dollars = f", {costs.dollars:,.0f} dollars" if costs.dollars is not None else ""
    return (
        f"{costs.tokens:.4g} tokens".replace("e+", "e")
        + f": {duration(costs.seconds)}, {costs.gpu_hours:,.0f} GPU hours{dollars}."
    )


def advice_lines(plan: Plan) -> list[RenderableType]:
    if not plan.advice:
        return [_below("Advice: ", "nothing that was tried would help.")]
    what = "What would make it faster:" if plan.fits == "yes" else "What would make it fit, the cheapest first:"
    return [what, *(_below("- ", f"add {words}") for words in plan.options)]


def search_table(found: Search, most: int = 10, costs: Sequence[Cost | None] = ()) -> Table:
    """Table of the plans found, the fastest first. A star marks a plan if no smaller one is as fast."""
    n = len(found.fitting)
    table = _table(
        (f"{n:,} of {found.n_tried:,} fit", "left"), ("memory", "right"), ("tokens/s/GPU", "right"), ("MFU", "right")
    )
    table.leading = 1
    table.caption, table.caption_justify = f"* nothing smaller is as fast. {found.n_maybe:,} more may fit.", "left"
    priced = [*costs, *[None] * most]
    for plan, its_cost in zip(found.fitting[:most], priced, strict=False):
        star = "* " if plan in found.front else ""
        words = star + choices(plan.setup.strategy) + (f"\n{cost_line(its_cost)}" if its_cost else "")
        table.add_row(
            words,
            gib(plan.memory.device_bytes[1]),
            f"{plan.speed.tokens_per_s:,.0f}",
            f"{plan.speed.mfu:.1%}",
        )
    return table


def proposal_lines(found: Search) -> list[RenderableType]:
    """Lines on what would be faster than the best of a search: the gain, the reasons, and the strategy."""
    if not found.proposals:
        return []
    lines: list[RenderableType] = ["Faster still, with options that the search left alone:"]
    for proposal in found.proposals:
        rate = f"{proposal.plan.speed.tokens_per_s:,.0f} tokens/s/GPU, {percent(proposal.gain)} faster: "
        lines.append(_below(rate, choices(proposal.plan.setup.strategy)))
        lines += [_below(f"  {option}: ", why) for option, why in proposal.options.items()]
    return lines


def trace_table(planned: Moment, traced: Moment) -> Table:
    """Table that compares the closed form with the trace, each at its peak."""
    table = _table(("at the peak", "left"), ("closed form", "right"), ("traced", "right"), ("ratio", "right"))
    ours, theirs = planned.by_category(), traced.by_category()
    for name in ours:
        _compare(table, name.replace("_", " "), ours[name], theirs[name])
    table.add_section()
    _compare(table, "allocated", planned.n_bytes, traced.n_bytes)
    elsewhere = "" if traced.name == planned.name else f"; the trace's in {traced.name}"
    table.caption = escape(f"The peak lies in {planned.name}{elsewhere}.")
    return table


def _compare(table: Table, name: str, planned: float, traced: float) -> None:
    if planned or traced:
        table.add_row(name, gib(planned), gib(traced), f"{planned / traced:.3f}" if traced else "")


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", width=WIDTH)
    for i, (name, side) in enumerate(columns):
        table.add_column(name, justify=side, ratio=1 if i == 0 else None)
    return table


def _bar(amount: float, size: float) -> Bar:
    return Bar(size, 0, min(amount, size), width=_BAR)


def _range(low: float, high: float) -> str:
    return f"{gib(low)} to {gib(high)}" if low < GIB / 10 else f"{gib(low, unit=False)} to {gib(high)}"


def _below(label: str, words: str) -> Padding:
    return Padding(Text(label, style="bold").append(words, style="not bold"), (0, 0, 0, 0))
