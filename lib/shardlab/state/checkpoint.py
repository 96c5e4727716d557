"""Save a training so that it can resume: after a kill at any moment, on fewer or more ranks, under another strategy.

    folder/
        latest                  names of the valid checkpoints, newest first, one a line
        step-1000/              one checkpoint, in the format of torch.distributed.checkpoint
        step-2000/
        step-3000.unfinished/   being written; or left by a job that was killed

[Note: a kill at any moment] A checkpoint exists when `latest` names it, and one rename replaces `latest`. Before that
rename, all checkpoints in the new `latest` are on the disk (fsync) under their final names. After it, the checkpoints
that are no longer in `latest` are deleted. So at every moment `latest` names only complete checkpoints: the old ones
before the rename, also the new one after it. A name in use is never written to: if a resumed training saves a step
again, it makes `step-3000.1`. A kill between the two renames leaves a complete checkpoint that `latest` does not name.
It does no harm; delete it by hand.

All ranks must see the same folder. The files of a checkpoint are partly pickles: load only those you trust.

Source: torch.distributed.checkpoint, whose save and load do the work.
"""

import operator
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from shardlab.state.barrier_and_rank_0_result import everybody_calls, from_rank_0, rank
from shardlab.state.sharded_state import (
    Described,
    OptimizerMemory,
    check_names,
    model_state,
    sharded_state_dict,
    weights_have_changed,
)

LATEST = "latest"


def save(
    folder: str | os.PathLike,
    step: int,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    keep: int | None = None,
    timeout_s: float = 30.0,
    **others: Stateful,
) -> Path:
    """Write model, optimizer, each rank's random state, and `others` (a scheduler, ...) into a checkpoint of `folder`.

    Call it on every rank. Each rank writes what it holds; if several ranks hold the same data, one of them writes it.
    A tensor or a dict among `others` is written, too; `load` fills the one that it is given in place. Only the `keep`
    newest checkpoints stay, all if None. Returns the checkpoint's folder: torch.distributed.checkpoint.load can read
    it, too.

    Sends: the plan, about 300 bytes a tensor. Keeps: one tensor at a time in host memory.
    Raises RuntimeError, naming the ranks, if some have not called it within `timeout_s`; ValueError or TypeError for
    what `load` could not take: a step that is no number, an object among `others` without state_dict() and
    load_state_dict() or under a name of our own, a state that is no tensor where tensors are expected.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least the checkpoint that is being saved must stay")
    _check_others(others)
    step = _number(step)
    everybody_calls("save", timeout_s)
    folder = Path(folder)
    unfinished = from_rank_0(lambda: _begin(folder, step))
    state = sharded_state_dict(model, optimizer) | {"step": step, "random": {str(rank()): _random_state()}} | others
    state["parts"] = dict.fromkeys(state, True)  # an object whose state_dict() is empty leaves no other trace
    with _torchs_own(f"writing {unfinished}") as alone:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(unfinished), no_dist=alone)
    return from_rank_0(lambda: _commit(folder, unfinished, keep))


_OUR_NAMES = {"model", "optim", "step", "random", "parts"}


def _check_others(others: dict[str, Any]) -> None:
    for name, other in others.items():
        if name in _OUR_NAMES:
            raise ValueError(f"rank {rank()}: {name} is a part that every checkpoint has: give yours another name")
        if not isinstance(other, Stateful | torch.Tensor | dict):  # the last two are filled in place
            raise TypeError(
                f"rank {rank()}: {name}={other!r:.80} has no state_dict() and load_state_dict(): it would be written, "
                "and could not be given back"
            )


def _number(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"rank {rank()}: step={step!r} is no whole number") from None


def load(
    folder: str | os.PathLike,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    timeout_s: float = 30.0,
    **others: Stateful,
) -> int:
    """Read the latest checkpoint of `folder` into model, optimizer and `others`; return its step.

    The strategy and the number of ranks may differ from those at `save`. A rank gets back the random state that the
    rank of the same number saved, if there was one.

    Sends: the plan. Keeps: one saved chunk at a time in host memory, and the optimizer's states twice if it has some.
    Raises FileNotFoundError if there is no checkpoint; RuntimeError if it is damaged; ValueError if it is of another
    model, or its parameter groups are divided differently. Then nothing has been changed, with one exception: weights
    have been loaded if the groups do not match, or if a file has the right length but cannot be read.
    """
    everybody_calls("load", timeout_s)
    path = from_rank_0(lambda: latest(folder))
    return load_from(path, model, optimizer, **others)


def latest(folder: str | os.PathLike) -> Path:
    """Path of the newest checkpoint in a folder."""
    names = _named(Path(folder))
    if not names:
        raise FileNotFoundError(f"{folder} holds no finished checkpoint: there is no file `{LATEST}` in it")
    return Path(folder) / names[0]


@torch.inference_mode(False)  # an optimizer's states are made here, and used in training
def load_from(
    path: str | os.PathLike, model: nn.Module, optimizer: Optimizer | None = None, **others: Stateful
) -> int | None:
    """Load one checkpoint, given its own folder, like `load`. torch.distributed.checkpoint may have written it.

    torch writes such a checkpoint with `dcp.save({"model": ..., "optim": ...}, checkpoint_id=path)` and the two states
    that its get_state_dict returns. The step is None then.
    """
    metadata: Metadata = from_rank_0(lambda: _read_metadata(Path(path)))
    saved = {metadata.planner_data[key]: described for key, described in metadata.state_dict_metadata.items()}
    _check_others(others)
    _check_parts(saved, path, model, ["optim"] * (optimizer is not None) + list(others))
    state: dict[str, Any] = {"model": model_state(model)} | others
    if optimizer is not None:
        memory = OptimizerMemory(model, optimizer, _tree(saved, ("optim", "state")))
        state["optim"] = {"state": memory.by_name, "param_groups": _empty_groups(saved)}
    if ("step",) in saved:
        state["step"] = None
    if mine := _tree(saved, ("random", str(rank()))):
        state["random"] = {str(rank()): _memory(mine)}
    with _torchs_own(f"reading {path}") as alone:
        dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=alone)
    weights_have_changed(model)
    if optimizer is not None:
        memory.give_to_optimizer(state["optim"]["param_groups"])
    if mine:
        _set_random_state(state["random"][str(rank())])
    return state.get("step")


# Writing, in an order that survives a kill


def _begin(folder: Path, step: int) -> Path:
    """Return the folder in which a new checkpoint is written; delete folders left by killed jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("*.unfinished"):
        shutil.rmtree(left_over)
    names = (f"step-{step}" + (f".{i}" if i else "") for i in count())
    return folder / (next(name for name in names if not (folder / name).exists()) + ".unfinished")


def _commit(folder: Path, unfinished: Path, keep: int | None) -> Path:
    final = unfinished.with_name(unfinished.name.removesuffix(".unfinished"))
    _sync(unfinished)
    os.rename(unfinished, final)
    _sync(folder)  # or after a power cut `latest` might be new, and this rename undone
    names = [final.name, *_named(folder)]
    _replace(folder / LATEST, "\n".join(names[:keep]) + "\n")
    for name in names[keep:] if keep else ():
        os.rename(folder / name, folder / f"{name}.unfinished")  # so that the next save finishes a deletion
        shutil.rmtree(folder / f"{name}.unfinished")
    return final


def _named(folder: Path) -> list[str]:
    file = folder / LATEST
    return file.read_text().split() if file.exists() else []


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f".{file.name}")
    with open(new, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, file)
    _sync(file.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading, after a check that the checkpoint is complete and of this model


def _read_metadata(path: Path) -> Metadata:
    """Return a checkpoint's metadata. Raises RuntimeError, naming the file, if the checkpoint is not complete."""
    if not (path / ".metadata").is_file():
        raise RuntimeError(f"{path} is not a finished checkpoint: there is no .metadata in it")
    try:
        metadata = dcp.FileSystemReader(path).read_metadata()
        ends = [(info.relative_path, info.offset + info.length) for info in metadata.storage_data.values()]
    except Exception as error:
        raise RuntimeError(f"{path / '.metadata'} is damaged: {error}") from error
    for name, end in ends:
        found = (path / name).stat().st_size if (path / name).exists() else 0
        if found < end:
            raise RuntimeError(f"{path / name} is damaged: {end} bytes or more were written, {found} are there")
    return metadata


def _check_parts(saved: dict[tuple, Any], path: str | os.PathLike, model: nn.Module, parts: list[str]) -> None:
    there = {keys[keys[0] == "parts"] for keys in saved}
    if missing := [part for part in ("model", *parts) if part not in there]:
        raise ValueError(f"{path} holds {', '.join(sorted(there))}, but no {', '.join(missing)}")
    shapes = {keys[1]: described.size for keys, described in saved.items() if keys[0] == "model"}
    check_names({name: t.shape for name, t in model_state(model).items()}, shapes)


def _tree(saved: dict[tuple, Any], prefix: tuple[str, ...]) -> dict:
    """Return what is saved below a key as nested dicts: (shape, dtype) for tensors, None for anything else."""
    tree: dict = {}
    for keys, described in saved.items():
        if keys[: len(prefix)] == prefix:
            branch = tree
            for key in keys[len(prefix) : -1]:
                branch = branch.setdefault(key, {})
            is_tensor = isinstance(described, TensorStorageMetadata)
            branch[keys[-1]] = (described.size, described.properties.dtype) if is_tensor else None
    return tree


def _empty_groups(saved: dict[tuple, Any]) -> list[dict[str, Any]]:
    """Return as many parameter groups as were saved, with the same keys; they are matched by name later."""
    groups = _tree(saved, ("optim", "param_groups"))
    return [_memory(groups[i]) for i in range(len(groups))]


def _memory(tree: dict[str, Described | None]) -> dict[str, torch.Tensor | None]:
    return {key: described and torch.empty(described[0], dtype=described[1]) for key, described in tree.items()}


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def _torchs_own(doing: str) -> Iterator[bool]:
    """Wrap a call of torch's checkpoint module: hide its warning about a single process, raise RuntimeError."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            yield not dist.is_initialized()
        except CheckpointException as error:
            reasons = "; ".join(f"rank {r}: {failure[0]}" for r, failure in error.failures.items())
            raise RuntimeError(f"{doing} failed: {reasons}") from error
