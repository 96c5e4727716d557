"""The record of a proof: one JSON file, the page that says it in words, and README's table of all records."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from shardbench import environment
from shardcourse.prove.parts import Part
from shardlab.tier import Tier

BEGIN, END = "<!-- proofs: written by `shardlab prove --readme` -->", "<!-- end of proofs -->"


def record_of(tier: Tier, everything: list[Part], outcomes: dict[str, dict], key: str) -> dict:
    """Return the record: where it ran, each part that ran with its claim, outcome and figures, and who did not run."""
    rows = [
        {"name": part.name, "claim": part.claim, **{k: v for k, v in outcomes[part.name].items() if k != "key"}}
        for part in everything
        if part.name in outcomes
    ]
    return {
        "proof": 1,
        "tier": tier.name,
        "ranks": tier.world_size,
        "environment": environment(),
        "sources": key,
        "held": sum(row["held"] for row in rows),
        "of": len(everything),
        "not_run": [part.name for part in everything if part.name not in outcomes],
        "seconds": round(sum(row["seconds"] for row in rows)),
        "parts": rows,
    }


def name_of(record: dict) -> str:
    """Return a record's name, of its tier, card and torch, as `prove-gpu8-h100-torch2.13`."""
    card = re.sub(r"[^a-z0-9]+", "-", (record["environment"]["cuda_device"] or "").lower()).strip("-")
    torch_version = ".".join(record["environment"]["torch"].split("+")[0].split(".")[:2])
    return "-".join(["prove", record["tier"], *([card] if card else []), f"torch{torch_version}"])


def page(record: dict) -> str:
    """Return the record as Markdown: what held, what did not and why, and what to do with it."""
    e = record["environment"]
    lines = [
        f"# {record['held']} of {record['of']} parts held: tier {record['tier']}",
        "",
        f"{record['ranks']} ranks, {e['cuda_device'] or e['cpu']}, torch {e['torch']}, Python {e['python']},",
        f"{e['date']}, {record['seconds'] / 60:.0f} minutes. Sources {record['sources']}.",
        "",
        "| part | held | seconds | what it shows |",
        "|---|---|---|---|",
        *(
            f"| {row['name']} | {'yes' if row['held'] else '**no**'} | {row['seconds']:.0f} | {row['claim']} |"
            for row in record["parts"]
        ),
    ]
    for row in (row for row in record["parts"] if not row["held"]):
        lines += ["", f"## {row['name']} did not hold", "", *(f"```\n{words}\n```" for words in row["complaints"])]
    lines += [
        "",
        *([f"Not run: {', '.join(record['not_run'])}.", ""] if record["not_run"] else []),
        "## What to do with this",
        "",
        f"Put `{name_of(record)}.json` into `lib/benchmarks/`, run `shardlab prove --readme`, and open a pull request;",
        "or open an issue, and attach the file. It holds no host name and no path of yours but in the last lines that",
        "a part printed before it crashed.",
    ]
    return "\n".join(lines) + "\n"


def table(records: Iterable[dict]) -> str:
    """Return README's table: a row for each machine on which a proof was run."""
    rows = [
        f"| {r['tier']} | {r['ranks']} | {r['environment']['cuda_device'] or 'CPU'} | {r['environment']['torch']} "
        f"| {r['environment']['python']} | {r['held']} of {len(r['parts'])} | {r['of']} | {r['environment']['date']} |"
        for r in records
    ]
    head = "| tier | ranks | device | torch | Python | held, of the parts that ran | parts in all | when |"
    return "\n".join([head, "|---" * 8 + "|", *rows])


def records_in(folder: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("prove-*.json"))]


def with_table(readme: str, records: Iterable[dict]) -> str:
    """Return README's text with the table in its place. Raises ValueError if it has no place for one."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md needs the lines {BEGIN} and {END}, once each: the table stands between them")
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{rest.split(END)[1]}"
