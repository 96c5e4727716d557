"""Training runs that others published, as Setups to plan: the real measurements that plans are compared with.

The file explains itself under `words`. Each run says whether a constant of the planner was fitted on it.

[Note: blind] A blind run enters the file in two commits. The first has its configuration, chosen by the table's rule
for what the source leaves open, and the planner's forecasts. The second has the measured figures. Forecasts are never
changed; today's plan may say something else, and both are compared with what was measured.

If a cause of a miss is found in some blind runs, and the planner is mended by it, these runs are "mended": their
forecasts count as before, and today's plan of them is no evidence. The other blind runs say what today's plan is worth.
"""

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from shardplan.models import shape_of
from shardplan.planned_job import Setup
from shardplan.shape import Experts, Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine

FILE = Path(__file__).with_name("published_runs.json")
MEMORY = ("memory_gib", "memory_gb", "fits")
SPEED = ("tokens_per_s", "step_s", "mfu", "hfu", "model_tflops", "hardware_tflops")
_COMMON = ("memory_of", "used", "outside", "assumed", "rule", "differs")  # fields of a table, for all of its runs
_STRATEGY = {f.name for f in fields(Strategy)}


@dataclass(frozen=True)
class Run:
    id: str
    table: str  # of the file
    source: str  # its title, and where in it
    url: str
    read: str  # "table", "summary" or "recalled": how far the source itself was seen
    model: str
    machine: str
    world_size: int
    strategy: dict  # the fields that differ from Strategy's defaults
    published: dict[str, float | bool]  # by a name of MEMORY or SPEED
    memory_of: str = ""  # "reserved" by the allocator, or "states" alone
    used: str = "predicted"  # "fit": a constant was fitted on it; "blind" and "mended": see [Note: blind]
    forecast: dict[str, float] = field(default_factory=dict)  # of a blind or mended run, by the same names
    outside: dict[str, str] | None = None  # "speed" or "memory": why the planner can't predict it
    assumed: str = ""  # what the source leaves open
    rule: str = ""  # by which a blind or mended run's setup was chosen, for the same
    differs: dict[str, str] = field(default_factory=dict)  # "speed" or "memory": why a prediction is off, where known

    @property
    def setup(self) -> Setup:
        """Setup of the run. Raises ValueError if its parts do not go together."""
        strategy = Strategy(**self.strategy)
        return Setup(_shape(self.model, strategy.seq_len), machine(self.machine), self.world_size, strategy)


@cache
def runs() -> tuple[Run, ...]:
    """Return all runs, in the file's order."""
    data = json.loads(FILE.read_text())
    return tuple(run for table in data["tables"] for run in _runs_of(table, data["sources"]))


def _runs_of(table: dict, sources: dict) -> list[Run]:
    source = sources[table["source"]]
    title = f"{source['title']}, {table['where']}"
    found = []
    for number, row in enumerate(table["rows"], 1):
        cells = {**table, **dict(zip(table["columns"], row, strict=True))}
        strategy = dict(table["strategy"]) | {name: cells[name] for name in table["columns"] if name in _STRATEGY}
        names = [name for name in table["columns"] if name in (*MEMORY, *SPEED)]
        published = {name: cells[name] for name in names if cells[name] is not None}
        forecast = {name: cells[f"forecast_{name}"] for name in (*MEMORY, *SPEED) if f"forecast_{name}" in cells}
        own = {"forecast": forecast} | {
            name: cells[name] for name in ("model", "machine", "world_size", *_COMMON) if name in cells
        }
        names = {"id": f"{table['id']}-{number}", "table": table["id"], "source": title}
        found.append(
            Run(**names, url=source["url"], read=source["read"], strategy=strategy, published=published, **own)
        )
    return found


@cache
def _models() -> dict[str, dict]:
    return json.loads(FILE.read_text())["models"]


def _shape(name: str, seq_len: int) -> Shape:
    """Return the shape of a public model, or of one that the file derives from a public model by changing fields."""
    if name not in _models():
        return shape_of(name)
    changes = {key: value for key, value in _models()[name].items() if not key.startswith("published_")}
    like = shape_of(changes.pop("like"))
    if changes.get("learned_positions") == "seq_len":
        changes |= {"learned_positions": seq_len}
    dim, n_heads = changes.get("dim", like.dim), changes.get("n_heads", like.n_heads)
    made = {"n_kv_heads": n_heads, "head_dim": dim // n_heads, "hidden_dim": 4 * dim} if not like.gated else {}
    if "experts" in changes:
        changes |= {"experts": Experts(*changes["experts"])}
    changes.setdefault("max_seq_len", max(seq_len, like.max_seq_len))
    return replace(like, name=name, **{**made, **changes})
