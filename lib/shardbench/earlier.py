"""Our engines compared with themselves at an earlier commit: step time, losses, peak bytes and bytes sent, in one run.

The earlier packages are unpacked under other names, so that one rank imports both, and their steps take turns.
"""

import re
import subprocess
import sys
import tarfile
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from shardbench import environment
from shardbench.engines import ENGINES, OURS, Engine
from shardbench.parallel import side_by_side, step_costs
from shardlab import local_device

_PACKAGE = re.compile(r"\bshard(?=(lab|bench|sim|plan|trace)\b)")  # ours, whose engines import each other
_EQUAL = ("peak_bytes", "wire_bytes")


class CommitError(ValueError):
    """No commit of that name has our engines."""


def run(
    commit: str,
    engines: tuple[str, ...] = tuple(ENGINES),
    model: str = "3M",
    pairs: int = 60,
    world_size: int = 4,
    micro_batch: int = 2,
    seq_len: int = 64,
    device: str | None = None,
) -> dict:
    """Return a row for each engine: `time` (a Comparison, now over then), `now` and `then` with bytes of one step.

    `commit` is one of this repository's history that has these engines. CommitError if it has none of that name.
    """
    shape = {"model": model, "world_size": world_size, "micro_batch": micro_batch, "seq_len": seq_len, "pairs": pairs}
    shape["device"] = device
    with TemporaryDirectory() as folder:
        _unpack(commit, Path(folder))
        rows = [_row(name, folder, shape) for name in engines]
    return {"benchmark": "earlier", "environment": environment(), "commit": commit, **shape, "rows": rows}


def show(result: dict) -> None:
    title = f"one step now / at {result['commit'][:8]}; {result['model']}, {result['world_size']} ranks"
    table = Table("engine", "step", "ms", "losses differ", "peak bytes", "bytes sent", title=title)
    for row in result["rows"]:
        time = row["time"]
        ratio = f"{time['ratio']:.3f} ({time['low']:.3f} to {time['high']:.3f})"
        ms = f"{time['a_s'] * 1e3:.1f} / {time['b_s'] * 1e3:.1f}"
        bytes_ = [f"{row['now'][name]:,.0f} / {row['then'][name]:,.0f}" for name in _EQUAL]
        table.add_row(row["engine"], ratio, ms, f"{row['max_loss_difference']:.1e}", *bytes_)
    Console(width=150).print(table)


def _unpack(commit: str, folder: Path) -> None:
    root = Path(__file__).parents[2]
    archive = subprocess.run(["git", "archive", commit, "lib"], cwd=root, check=False, capture_output=True)
    if archive.returncode:
        said = archive.stderr.decode(errors="replace").strip()
        raise CommitError(f"no lib at commit {commit!r} ({said}): `git log` shows this repository's commits")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    for package in (folder / "lib").glob("shard*"):
        package.rename(package.with_name(_PACKAGE.sub("earlier_shard", package.name)))
    for file in folder.rglob("*.py"):
        file.write_text(_PACKAGE.sub("earlier_shard", file.read_text()))


def _row(name: str, folder: str, shape: dict) -> dict:
    now, then = partial(ENGINES[name].build, OURS), partial(_earlier, name, folder, shape["model"])
    costs = {"now": step_costs(now, shape), "then": step_costs(then, shape)}
    return {"engine": name, **side_by_side(now, then, shape), **costs}


# On a rank


def _earlier(name: str, folder: str, model: str, _: nn.Module) -> Engine:
    """Build the earlier engine around the earlier model, which it may look into."""
    lib = Path(folder, "lib")
    sys.path.insert(0, str(lib))
    room = "earlier_shardlab.bench" if (lib / "earlier_shardlab" / "bench").exists() else "earlier_shardbench"
    engines, models = import_module(f"{room}.engines"), import_module("earlier_shardlab.model")
    torch.manual_seed(0)
    return engines.ENGINES[name].build(engines.OURS, models.Transformer(models.preset(model)).to(local_device()))
