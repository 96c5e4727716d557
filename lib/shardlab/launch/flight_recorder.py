"""Read torch's flight recorder: the collectives that this rank has issued, and the one in which it is stuck.

torch keeps ring buffers of the collectives of every process group: one for gloo and, in a CUDA build, one for NCCL. The
C++ process group itself writes them, so they also hold the collectives that DDP's reducer or FSDP issue. On a cluster,
people read them after a hang. Here the hang report of `launch` and the traffic figures of `measure` use them.

[Note: NCCL's entries] Several entries can be one call. An uneven reduce_scatter of a list is N "nccl:_reduce_oop" and
one "nccl:REDUCE_SCATTER_coalesced" without sizes; an all_gather of an uneven list is N "nccl:_broadcast_oop" and one
"nccl:ALLGATHER_coalesced"; a coalescing manager closes with "nccl:coalesced". All have one sequence number, and only
the closing entry knows the call's state. A batch of sends is closed in the same way, but its closing entry has the
last collective's number: only the entries before it tell it apart.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp (the fields; dump_fr_trace reads the
ring of c10::Event, gloo's); ProcessGroupNCCL.cpp: initWork, collective, pointToPoint, endCoalescing, workEnqueue,
barrier, scatter; torch/distributed/flight_recorder/components/types.py (the names).
"""

import io
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch._C._distributed_c10d as c10d
import torch.distributed as dist

BUFFER_ENTRIES = 20_000  # length of the recorder's ring; older collectives are lost

_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1}
_BYTES |= {"Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
_KINDS = {
    "_all_gather_base": "all_gather",  # NCCL's name
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "_broadcast_oop": "broadcast",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "_reduce_oop": "reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",  # NCCL's: an all_reduce of one element
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
}
_CLOSING = {"REDUCE_SCATTER_coalesced": "reduce_scatter", "ALLGATHER_coalesced": "all_gather", "coalesced": ""}
_UNEVEN = ("scatter", "all_to_all")  # input sizes may differ between ranks
POINT_TO_POINT = ("send", "recv")
_TORCHS_API = ("/distributed/distributed_c10d.py", "/distributed/_functional_collectives.py")
_NOT_THE_CALLER = ("/torch/", "/typing_extensions.py", "/contextlib.py", "/shardlab/measure/", "/shardsim/")
_NOT_THE_CALLER += ("<frozen", "/warnings.py", "/_py_warnings.py")  # the last two: the wrapper of what torch deprecates


@dataclass(frozen=True)
class Collective:
    """One collective as this rank issued it."""

    seq: int  # position in its process group's order; equal on every rank of a healthy job
    group: str
    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, barrier, ...
    input_bytes: int  # of the tensors this rank put in
    output_bytes: int  # of the tensors this rank got out
    dtype: str
    shape: tuple[tuple[int, ...], ...]
    issued_s: float  # seconds since the epoch
    where: str  # "file.py:12 in train_step", the innermost frame outside torch
    state: str = "issued"  # then "started" (gloo does not report it) and "finished"
    members: tuple[int, ...] = ()  # ranks of its group, by their numbers in the whole job
    own_bytes: int | None = None  # of an all_to_all's input: what stays on this rank. `record_traffic` knows
    backend: str = "gloo"  # each has a ring, and counts a group's collectives, for itself
    entries: int = 1  # places that it takes in the ring

    @property
    def signature(self) -> str:
        """Kind, dtype and shapes of the call: `all_reduce Float[1024]`."""
        shapes = ", ".join(str(list(s)) for s in self.shape)
        return f"{self.kind} {self.dtype}{shapes}" if self.shape else self.kind

    @property
    def agreed(self) -> str:
        """Part of the signature that must be the same on every rank."""
        return self.kind if self.kind in _UNEVEN else self.signature


class Log(list[Collective]):
    """Calls of one rank in the recorder's rings, oldest first."""

    # By backend and group: numbers of the last call and of the last finished call. They outlast the ring's entries.
    progress: dict[tuple[str, str], tuple[int, int]] = {}


def enable() -> None:
    """Switch the recorder on for process groups made after this call."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(BUFFER_ENTRIES))


def kept_entries() -> int:
    """Number of calls that the ring holds. The user may have set it, or made a group without `enable`."""
    return min(BUFFER_ENTRIES, int(os.environ.get("TORCH_FR_BUFFER_SIZE", 2000)))  # torch's default


def collectives(last: int | None = None) -> Log:
    """Collectives that this rank has issued and the rings still hold, oldest first; with `last`, only the newest."""
    log = Log()
    for dump in (getattr(c10d, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")):
        if dump is not None:
            _read(pickle.loads(dump()), log, _members, dist.get_rank() if dist.is_initialized() else 0)
    log.sort(key=lambda c: c.issued_s)
    del log[: -last if last else 0]
    return log


def read_dump(path: str | Path) -> Log:
    """Return the calls in a file that torch's recorder wrote. Its name must end with the rank's number.

    The file may come from anywhere: nothing in it is executed. Raises ValueError if it is no such dump.
    """
    rank, log = re.search(r"\d+$", str(path)), Log()
    try:
        dump = _PlainData(io.BytesIO(Path(path).read_bytes())).load()
        groups = {name: tuple(json.loads(group["ranks"])) for name, group in dump["pg_config"].items()}
        _read(dump, log, lambda name: groups.get(name, ()), int(rank.group()))
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is no dump of one rank's flight recorder: {error}") from error
    return log


class _PlainData(pickle.Unpickler):
    """Reads numbers, text, lists and dicts, and nothing else."""

    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read(dump: dict, log: Log, members_of: Callable[[str], tuple[int, ...]], rank: int) -> None:
    """Add the calls and the progress in one ring to `log`."""
    entries, progress = dump.get("entries", []), _progress(dump)
    members = {name: members_of(name) for name in {entry["process_group"][0] for entry in entries}}
    for entry in _one_a_call(_as_asked_for(entries), members, rank):
        c = _parse(entry, members[entry["process_group"][0]])
        through = c.kind not in POINT_TO_POINT and c.seq <= progress.get(("nccl", c.group), (0, 0))[1]
        log.append(replace(c, state="finished") if through else c)
    log.progress = log.progress | progress


def _progress(dump: dict) -> dict[tuple[str, str], tuple[int, int]]:
    """Return `pg_status`, which knows the groups by number, by backend and name. Numbers grow as the groups are made.

    Sends and recvs write their own numbers there (workEnqueue), so a group that had any is left out.
    """
    entries, status, config = dump.get("entries", []), dump.get("pg_status", {}), dump.get("pg_config", {})
    names = {str(e.get("pg_id")): e["process_group"][0] for e in entries}
    if len(config) == len(status) and all(name.isdigit() for name in config):
        names = dict(zip(sorted(status, key=int), sorted(config, key=int), strict=True)) | names
    backend = _backend(entries[0]) if entries else "nccl"  # gloo's ring has no list of groups
    mixed = {e["process_group"][0] for e in entries if e.get("p2p_seq_id")}
    found = {}
    for number, s in status.items():
        last, through = s["last_enqueued_collective"], s["last_completed_collective"]
        if names.get(number, "") not in ("", *mixed) and through <= last:
            found[backend, names[number]] = last, through
    return found


def _one_a_call(entries: list[dict], members: dict[str, tuple[int, ...]], rank: int) -> list[dict]:
    """Return one entry for each call: see [Note: NCCL's entries]."""
    newest: dict[str, list[dict]] = {}  # by group: its last entries, as far as they have one number
    dropped: set[int] = set()
    for entry in entries:
        group, name = entry["process_group"][0], entry["profiling_name"].removeprefix("nccl:")
        parts = newest.get(group, [])
        if name not in _CLOSING:
            newest[group] = [*parts, entry] if parts and _number(parts[0]) == _number(entry) else [entry]
            continue
        dropped.add(id(entry))
        for part in parts:
            part["state"] = entry["state"]
        if parts and not parts[0].get("is_p2p"):
            own = members[group].index(rank) if rank in members[group] else 0
            parts[0] |= _together(parts, parts[min(own, len(parts) - 1)], _CLOSING[name])
            dropped |= set(map(id, parts[1:]))
    return [entry for entry in entries if id(entry) not in dropped]


def _number(entry: dict) -> tuple[bool, int]:
    return (True, entry["p2p_seq_id"]) if entry.get("is_p2p") else (False, entry["collective_seq_id"])


def _together(parts: list[dict], own: dict, kind: str) -> dict:
    """Return the fields of the one call that these parts make up; `own` is the part of which this rank is the root."""
    inputs, outputs = ([own] if kind == side else parts for side in ("all_gather", "reduce_scatter"))
    fields = {"profiling_name": f"nccl:{kind}" if kind else parts[0]["profiling_name"], "entries": len(parts) + 1}
    for what in ("sizes", "dtypes"):
        fields[f"input_{what}"] = [x for part in inputs for x in part[f"input_{what}"]]
        fields[f"output_{what}"] = [x for part in outputs for x in part[f"output_{what}"]]
    return fields | {"shape": fields["output_sizes" if kind == "all_gather" else "input_sizes"]}


def _as_asked_for(entries: list[dict]) -> list[dict]:
    """Return the entries with every reduce_scatter under its own name and sizes.

    gloo runs a reduce_scatter as an all_reduce, and the recorder shows what ran: one all_reduce of a whole tensor, or
    one for each share in a list. The innermost frame in torch's Python API tells what the program asked for. A call
    that bypasses this API (`torch.ops`, C++) stays an all_reduce, which `record_traffic` corrects.
    """
    found: list[dict] = []
    lists: dict[str, dict] = {}  # by group: the entry of the last list of shares
    for entry in entries:
        asked, group = _asked_for(entry), entry["process_group"][0]
        if _kind(entry) != "all_reduce" or not asked.lstrip("_").startswith("reduce_scatter"):
            found.append(entry)
            continue
        n = len(_members(group)) or 1
        if asked == "reduce_scatter" and group in lists and len(lists[group]["input_sizes"]) < n:
            lists[group]["input_sizes"] += entry["input_sizes"]
            lists[group]["input_dtypes"] += entry["input_dtypes"]
            lists[group]["entries"] = len(lists[group]["input_sizes"])
            continue
        found.append(entry | {"profiling_name": "gloo:reduce_scatter"})
        if asked == "reduce_scatter":
            lists[group] = found[-1]
        else:
            found[-1]["output_sizes"] = [[math.prod(shape) // n] for shape in entry["output_sizes"]]
    return found


def _asked_for(entry: dict) -> str:
    names = (f["name"] for f in entry.get("frames", []) if f["filename"].replace(os.sep, "/").endswith(_TORCHS_API))
    return next(names, "")


def _members(name: str) -> tuple[int, ...]:
    try:
        return tuple(dist.get_process_group_ranks(c10d._resolve_process_group(name)))
    except (RuntimeError, KeyError):  # the group has been destroyed
        return ()


def _state(entry: dict) -> str:
    if _backend(entry) == "nccl":
        return {"completed": "finished", "started": "started"}.get(entry.get("state"), "issued")
    return "finished" if entry.get("retired") else "issued"


def _backend(entry: dict) -> str:
    return entry["profiling_name"].split(":", 1)[0]


def _kind(entry: dict) -> str:
    """Kind of an entry: all_reduce for "gloo:all_reduce", send for "nccl:send 0->1"."""
    name = entry["profiling_name"].split(":", 1)[-1].split(" ")[0]
    return _KINDS.get(name, name)


def _parse(entry: dict, members: tuple[int, ...] = ()) -> Collective:
    kind, backend = _kind(entry), _backend(entry)
    inputs, outputs = ((entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output"))
    if (backend, kind) == ("nccl", "scatter"):  # recorded the other way round
        inputs, outputs = outputs, inputs
    input_bytes = 0 if kind in ("barrier", "recv") else _bytes(*inputs)
    output_bytes = 0 if kind in ("barrier", "send") else _bytes(*outputs)
    if (backend, kind) == ("gloo", "all_gather"):  # a functional one (DTensor's) is recorded with one rank's share
        output_bytes = max(output_bytes, input_bytes * len(members))
    return Collective(
        seq=entry["collective_seq_id"],
        group=entry["process_group"][0],
        kind=kind,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        dtype=(inputs[1] or [""])[0],
        shape=tuple(tuple(s) for s in entry.get("shape", inputs[0]) if kind != "barrier"),
        issued_s=entry["time_created_ns"] / 1e9,
        where=where(entry.get("frames", [])),
        state=_state(entry),
        members=members,
        backend=backend,
        entries=entry.get("entries", 1),
    )


def _bytes(shapes: list[list[int]], dtypes: list[str]) -> int:
    return sum(math.prod(shape) * _BYTES.get(dtype, 1) for shape, dtype in zip(shapes, dtypes, strict=False))


def where(frames: list[dict]) -> str:
    """Line of the caller: the innermost frame outside torch and our tools. `frames` come innermost first."""
    for frame in frames:
        file = frame["filename"].replace(os.sep, "/")
        if not any(part in file for part in _NOT_THE_CALLER):
            return f"{os.path.basename(file)}:{frame['line']} in {frame['name']}"
    return ""
