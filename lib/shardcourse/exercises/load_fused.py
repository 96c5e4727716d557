"""Check of lesson 20's exercise: a loader that reads one rank's rows from files in which tensors have other names.

The files hold query, key and value as one tensor, and no output layer: the model ties it to the embedding.
"""

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardlab import LaunchError, launch

WIDTH, INDEX = 6, "model.safetensors.index.json"
ROWS = {"embed_tokens": 11, "q_proj": 8, "k_proj": 4, "v_proj": 4, "down_proj": 7, "lm_head": 11}
SOURCE = {
    "q_proj.weight": ("qkv_proj.weight", 0),
    "k_proj.weight": ("qkv_proj.weight", 8),
    "v_proj.weight": ("qkv_proj.weight", 12),
    "lm_head.weight": ("embed_tokens.weight", 0),
}
FILES: dict[str, tuple[str, ...]] = {"model-1.safetensors": ("embed_tokens.weight",)}
FILES |= {"model-2.safetensors": ("qkv_proj.weight", "down_proj.weight")}
Rows = Mapping[str, tuple[int, Tensor]]  # name: (first row, the rows to fill)
Loader = Callable[[Path, Rows, Mapping[str, tuple[str, int]], Callable[[Path], Any]], None]


class CountedFile:
    """A safetensors file that counts the bytes read from it. It has `keys`, `get_tensor` and `get_slice(name)[a:b]`."""

    n_bytes, opened = 0, set()  # of all files, since `forget`

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file = safe_open(path, "pt")
        CountedFile.opened.add(Path(path).name)

    @classmethod
    def forget(cls) -> None:
        cls.n_bytes, cls.opened = 0, set()

    def __enter__(self) -> "CountedFile":
        return self

    def __exit__(self, *error) -> None:
        pass

    def keys(self) -> list[str]:
        return list(self._file.keys())

    def get_tensor(self, name: str) -> Tensor:
        return self._counted(self._file.get_tensor(name))

    def get_slice(self, name: str) -> "CountedFile._Slice":
        return self._Slice(self, name)

    def _counted(self, rows: Tensor) -> Tensor:
        CountedFile.n_bytes += rows.nbytes
        return rows

    class _Slice:
        def __init__(self, file: "CountedFile", name: str) -> None:
            self._file, self._slice = file, file._file.get_slice(name)

        def __getitem__(self, span) -> Tensor:
            return self._file._counted(self._slice[span])

        def get_shape(self) -> list[int]:
            return self._slice.get_shape()


def check_loader(load: Loader) -> str:
    """Return in words what is wrong with `load(folder, mine, source, open_file)`, or that it is right.

    It is tried as each rank of 1, 3, 4 and 5 in this process, then on three real ranks.
    """
    with tempfile.TemporaryDirectory() as name:
        whole = write_files(Path(name))
        return checked(load, Path(name), whole)


def write_files(folder: Path) -> dict[str, Tensor]:
    """Write two files in bfloat16, and their index. Return the whole tensors by the model's names."""
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(0)
    sizes = {"embed_tokens.weight": 11, "qkv_proj.weight": 16, "down_proj.weight": 7}
    saved = {name: torch.randn(n, WIDTH, generator=draw).bfloat16() for name, n in sizes.items()}
    for file, names in FILES.items():
        save_file({name: saved[name] for name in names}, folder / file)
    where = {name: file for file, names in FILES.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    whole = {}
    for module, n in ROWS.items():
        source, start = SOURCE.get(f"{module}.weight", (f"{module}.weight", 0))
        whole[f"{module}.weight"] = saved[source][start : start + n].float()
    return whole


def checked(load: Loader, folder: Path, whole: Mapping[str, Tensor]) -> str:
    for n in (1, 3, 4, 5):
        for rank in range(n):
            if problem := _as_rank(load, folder, whole, rank, n):
                return f"As rank {rank} of {n}: {problem}"
    try:
        found = launch(partial(_on_a_rank, load), 3, folder, device="cpu", stream=False)[0]
    except LaunchError as error:
        return f"On three real ranks it fails. {str(error).strip().splitlines()[-1]}"
    wrong = [name for name in whole if not torch.equal(found[name], whole[name])]
    return f"On three real ranks {wrong[0]} is wrong." if wrong else "Right: each rank reads its own rows, once."


def _as_rank(load: Loader, folder: Path, whole: Mapping[str, Tensor], rank: int, n: int) -> str:
    mine, needed = {}, {}
    for name, tensor in whole.items():
        chunk = math.ceil(len(tensor) / n)
        first, last = (min(len(tensor), i * chunk) for i in (rank, rank + 1))
        mine[name] = first, torch.full_like(tensor[first:last], torch.nan)
        source, start = SOURCE.get(name, (name, 0))
        if first < last:
            needed[source, start + first] = (last - first) * WIDTH * torch.bfloat16.itemsize
    CountedFile.forget()
    try:
        load(folder, mine, SOURCE, CountedFile)
    except Exception as error:
        return f"your loader raised {type(error).__name__}: {error}"
    for name, (first, rows) in mine.items():
        if problem := _wrong_row(whole, name, first, rows):
            return f"{name}: {problem}"
    files = {file for file, names in FILES.items() if any(source in names for source, _ in needed)}
    if extra := sorted(CountedFile.opened - files):
        return f"your loader opened {extra[0]}, which has none of its rows"
    if CountedFile.n_bytes != (due := sum(needed.values())):
        return f"your loader read {CountedFile.n_bytes} bytes; its rows have {due}{_why(CountedFile.n_bytes, due)}"
    return ""


def _why(found: int, due: int) -> str:
    """Return the likely cause, if bytes were counted at all."""
    return ", with shared rows read once" if found > due else ", and not all went through open_file"


def _wrong_row(whole: Mapping[str, Tensor], name: str, first: int, rows: Tensor) -> str:
    for i, row in enumerate(rows):
        if torch.equal(row, whole[name][first + i]):
            continue
        if row.isnan().any():
            return f"row {first + i} was not filled"
        same = [f"{other}'s row {j}" for other, t in whole.items() for j, r in enumerate(t) if torch.equal(row, r)]
        return f"row {first + i} has " + (f"the values of {same[0]}" if same else "values of no row")
    return ""


def _on_a_rank(load: Loader, folder: Path) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential()
    for module, n in ROWS.items():
        model.add_module(module, nn.Linear(WIDTH, n, bias=False))
    fully_shard(model)
    mine = {}
    for name, p in model.named_parameters():
        _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
        mine[name] = offset[0], p.to_local().detach()
    load(folder, mine, SOURCE, CountedFile)
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}
