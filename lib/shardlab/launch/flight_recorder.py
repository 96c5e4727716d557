"""Read torch's flight recorder: the collectives that this rank has issued, and the one in which it is stuck.

torch keeps a ring buffer of the collectives of every process group. The C++ process group itself writes it, so it also
holds the collectives that DDP's reducer or FSDP issue. On a cluster, people read it after a hang. Here the hang report
of `launch` and the traffic figures of `measure` use it.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import math
import os
import pickle
from collections import Counter
from dataclasses import dataclass

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
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}
_UNEVEN = ("scatter", "all_to_all")  # input sizes may differ between ranks
POINT_TO_POINT = ("send", "recv")
_DEFAULT_GROUP = "0"  # all ranks belong to it
_TORCHS_API = ("/distributed/distributed_c10d.py", "/distributed/_functional_collectives.py")
_NOT_THE_CALLER = ("/torch/", "/typing_extensions.py", "/contextlib.py", "/shardlab/measure/", "/shardsim/")
_NOT_THE_CALLER += ("<frozen",)


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

    @property
    def signature(self) -> str:
        """Kind, dtype and shapes of the call: `all_reduce Float[1024]`."""
        shapes = ", ".join(str(list(s)) for s in self.shape)
        return f"{self.kind} {self.dtype}{shapes}" if self.shape else self.kind

    @property
    def agreed(self) -> str:
        """Part of the signature that must be the same on every rank."""
        return self.kind if self.kind in _UNEVEN else self.signature


def enable() -> None:
    """Switch the recorder on for process groups made after this call."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(BUFFER_ENTRIES))


def kept_entries() -> int:
    """Number of calls that the ring holds. The user may have set it, or made a group without `enable`."""
    return min(BUFFER_ENTRIES, int(os.environ.get("TORCH_FR_BUFFER_SIZE", 2000)))  # torch's default


def collectives(last: int | None = None) -> list[Collective]:
    """Collectives that this rank has issued and the ring still holds, oldest first; with `last`, only the newest."""
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    if dump is None:
        return []
    entries = _as_asked_for(pickle.loads(dump()).get("entries", []))[-(last or 0) :]
    members = {name: _members(name) for name in {entry["process_group"][0] for entry in entries}}
    return [_parse(entry, members[entry["process_group"][0]]) for entry in entries]


def _as_asked_for(entries: list[dict]) -> list[dict]:
    """Return the entries with every reduce_scatter under its own name and sizes.

    gloo runs a reduce_scatter as an all_reduce, and the recorder shows what ran: one all_reduce of a whole tensor, or
    one for each share in a list. This is a detail of gloo: the program asked for a reduce_scatter, and NCCL runs one.
    The innermost frame in torch's Python API tells what the program asked for. A call that bypasses this API
    (`torch.ops`, C++) stays an all_reduce.
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
            continue
        found.append(entry | {"profiling_name": "reduce_scatter"})
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
    if entry["profiling_name"].startswith("nccl"):
        return {"completed": "finished", "started": "started"}.get(entry.get("state"), "issued")
    return "finished" if entry.get("retired") else "issued"


def _kind(entry: dict) -> str:
    """Kind of an entry: all_reduce for "gloo:all_reduce", send for "nccl:send 0->1"."""
    name = entry["profiling_name"].split(":", 1)[-1].split(" ")[0]
    return _KINDS.get(name, name)


def _parse(entry: dict, members: tuple[int, ...] = ()) -> Collective:
    inputs, outputs = entry["input_sizes"], entry["output_sizes"]
    kind, input_bytes = _kind(entry), _bytes(inputs, entry["input_dtypes"])
    output_bytes = _bytes(outputs, entry["output_dtypes"])
    if kind == "all_gather":  # of functional collectives (DTensor's), gloo records one rank's share of the output
        output_bytes = max(output_bytes, input_bytes * len(members))
    return Collective(
        seq=entry["collective_seq_id"],
        group=entry["process_group"][0],
        kind=kind,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        dtype=(entry["input_dtypes"] or [""])[0],
        shape=tuple(tuple(s) for s in inputs),
        issued_s=entry["time_created_ns"] / 1e9,
        where=where(entry.get("frames", [])),
        state=_state(entry),
        members=members,
    )


def _bytes(shapes: list[list[int]], dtypes: list[str]) -> int:
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=False):
        total += math.prod(shape) * _BYTES.get(dtype, 1)
    return total


def where(frames: list[dict]) -> str:
    """Line of the caller: the innermost frame outside torch and our tools. `frames` come innermost first."""
    for frame in frames:
        file = frame["filename"].replace(os.sep, "/")
        if not any(part in file for part in _NOT_THE_CALLER):
            return f"{os.path.basename(file)}:{frame['line']} in {frame['name']}"
    return ""


def first_disagreement(by_rank: dict[int, list[Collective]]) -> tuple[str, int | None] | None:
    """Describe the first collective on which the ranks differ; return this text and the one rank that differs.

    Ranks must issue the same collectives in the same order on a group. If they do not, the job hangs or, worse, mixes
    up tensors. The sequence number tells where this began. None if they agree; rank None if no single one differs.
    """
    calls: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank, log in by_rank.items():
        for c in _collective_only(log):
            calls.setdefault((c.group, c.seq), {})[rank] = c
    for (_, seq), ranks in sorted(calls.items(), key=lambda item: item[0][1]):
        counts = Counter(c.agreed for c in ranks.values())
        if len(counts) > 1:
            said = "; ".join(f"rank {r}: {c.signature} at {c.where or '?'}" for r, c in sorted(ranks.items()))
            alone = [r for r, c in ranks.items() if counts[c.agreed] == 1]
            odd = alone[0] if len(alone) == 1 and len(ranks) > 2 else None
            return f"the ranks disagree from collective #{seq} on: {said}", odd
    return None


def laggard(by_rank: dict[int, list[Collective]]) -> int | None:
    """Return the one rank that has issued fewer collectives than all others of a group, so that they wait for it."""
    issued: dict[str, dict[int, int]] = {_DEFAULT_GROUP: dict.fromkeys(by_rank, 0)}
    for rank, log in by_rank.items():
        for c in _collective_only(log):
            issued.setdefault(c.group, {})[rank] = c.seq
    for by_member in issued.values():
        behind = [r for r, seq in by_member.items() if seq == min(by_member.values())]
        if len(behind) == 1 < len(by_member):
            return behind[0]
    return None


def _collective_only(log: list[Collective]) -> list[Collective]:
    return [c for c in log if c.kind not in POINT_TO_POINT]
