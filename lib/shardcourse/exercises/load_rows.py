"""Check of lesson 11a's exercise: a loader that takes the rows of any number of ranks from files of four ranks."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardcourse.experiments.small_run import sharded
from shardlab import LaunchError, launch

Index = Mapping[str, list[tuple[str, int, int]]]  # of each tensor: (file, first row, number of rows)
Loader = Callable[[Path, Index, Mapping[str, tuple[int, Tensor]]], None]


def save_rows(folder: Path) -> None:
    """Write this rank's rows of each weight to `rank-<r>.pt`; rank 0 also writes the index of all files, `index.pt`."""
    model, _ = sharded()
    mine = _rows(model)
    file = f"rank-{dist.get_rank()}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({name: rows.cpu() for name, (_, rows) in mine.items()}, folder / file)
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: (file, first, len(rows)) for name, (first, rows) in mine.items()})
    if dist.get_rank() == 0:
        torch.save({name: [theirs[name] for theirs in everyone] for name in mine}, folder / "index.pt")
    dist.barrier()


def check_loader(load: Loader) -> str:
    """Return in words what is wrong with `load(folder, index, mine)`, or that it is right.

    Four ranks save. The loader is tried as each rank of 3, 4, 2, 1 and 7 in this process, then on three real ranks.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launch(save_rows, 4, folder, device="cpu", stream=False)
        return _checked(load, folder)


def _checked(load: Loader, folder: Path) -> str:
    index = torch.load(folder / "index.pt")
    whole = _whole(folder, index)
    for n in (3, 4, 2, 1, 7):
        for rank in range(n):
            if problem := _as_rank(load, folder, index, whole, rank, n):
                return f"As rank {rank} of {n}: {problem}"
    if problem := _with_a_file_missing(load, folder, index, whole):
        return problem
    try:
        found = launch(partial(_on_a_rank, load), 3, folder, device="cpu", stream=False)[0]
    except LaunchError as error:
        return f"On three real ranks it fails. {str(error).strip().splitlines()[-1]}"
    wrong = [name for name in whole if not torch.equal(found[name], whole[name])]
    return (
        f"On three real ranks {wrong[0]} is wrong." if wrong else "Right: 3 ranks hold the weights that 4 ranks saved."
    )


def _as_rank(load: Loader, folder: Path, index: Index, whole: Mapping[str, Tensor], rank: int, n: int) -> str:
    spans = {name: _span(len(t), rank, n) for name, t in whole.items()}
    mine = {name: (first, torch.full_like(whole[name][first:last], torch.nan)) for name, (first, last) in spans.items()}
    try:
        with _opened() as files:
            load(folder, index, mine)
    except Exception as error:
        return f"your loader raised {type(error).__name__}: {error}"
    for name, (first, rows) in mine.items():
        if problem := _wrong_row(whole[name], first, rows):
            return f"{name}: {problem}"
    needed = {file for name, (first, last) in spans.items() for file in _files(index[name], first, last)}
    if extra := sorted(files - needed - {"index.pt"}):
        return f"your loader opened {', '.join(extra)}, which has none of its rows"
    return ""


def _wrong_row(whole: Tensor, first: int, rows: Tensor) -> str:
    for i, row in enumerate(rows):
        if torch.equal(row, whole[first + i]):
            continue
        if row.isnan().any():
            return f"row {first + i} was not filled"
        same = [j for j, other in enumerate(whole) if torch.equal(row, other)]
        return f"row {first + i} has " + (f"the values of row {same[0]}" if same else "values of no row")
    return ""


def _with_a_file_missing(load: Loader, folder: Path, index: Index, whole: Mapping[str, Tensor]) -> str:
    name, pieces = next(iter(index.items()))
    lacking = {**index, name: pieces[:1] + pieces[2:]}
    try:
        load(folder, lacking, {name: (0, torch.full_like(whole[name], torch.nan))})
    except ValueError as error:
        return "" if name in str(error) else f"The ValueError for missing rows does not name {name}."
    except Exception as error:
        return f"Rows are missing from the index: it should raise ValueError, not {type(error).__name__}."
    _, first, n = pieces[1]
    return f"The index lacks rows {first} to {first + n - 1} of {name}, and your loader did not raise ValueError."


def _on_a_rank(load: Loader, folder: Path) -> dict[str, Tensor]:
    model, _ = sharded(seed=1)
    load(folder, torch.load(folder / "index.pt"), _rows(model))
    return {name: p.full_tensor().detach().cpu() for name, p in model.named_parameters()}


def _rows(model) -> dict[str, tuple[int, Tensor]]:
    """Return by name (first row, this rank's rows) of each weight; loading into the rows changes the model."""
    found = {}
    for name, p in model.named_parameters():
        if not isinstance(p, DTensor):
            raise TypeError(f"{name} is not sharded")
        _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
        found[name] = offset[0], p.to_local().detach()
    return found


def _whole(folder: Path, index: Index) -> dict[str, Tensor]:
    files = {file: torch.load(folder / file) for pieces in index.values() for file, _, _ in pieces}
    return {name: torch.cat([files[file][name] for file, _, _ in pieces]) for name, pieces in index.items()}


def _span(n_rows: int, rank: int, n: int) -> tuple[int, int]:
    """Return the rows of a rank as FSDP2 divides them: equal chunks, rounded up; the last ranks may have none."""
    chunk = math.ceil(n_rows / n)
    return min(n_rows, rank * chunk), min(n_rows, (rank + 1) * chunk)


def _files(pieces: list[tuple[str, int, int]], first: int, last: int) -> set[str]:
    return {file for file, start, n in pieces if max(first, start) < min(last, start + n)}


@contextmanager
def _opened() -> Iterator[set[str]]:
    """Collect the names of the files that torch.load opens inside the block."""
    names: set[str] = set()
    torchs = torch.load

    def noted(file, *args, **options):
        names.add(Path(file).name if isinstance(file, str | Path) else Path(file.name).name)
        return torchs(file, *args, **options)

    with mock.patch.object(torch, "load", noted):
        yield names
