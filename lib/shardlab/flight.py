"""The flight recorder: which collectives has this rank issued, and which is it stuck in?

torch keeps a ring buffer of the collectives of every process group, written by the C++ process group itself, so that
the ones DDP's reducer or FSDP issue are in it too. It is what one reads after a hang on a cluster; here it serves the
hang report of `launch` and the traffic figures of `measure`.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

import os
import pickle
from collections import Counter
from dataclasses import dataclass

import torch._C._distributed_c10d as c10d

BUFFER_ENTRIES = 20_000  # the recorder's ring: older collectives are forgotten

_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1}
_BYTES |= {"Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
_KINDS = {
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
}


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

    @property
    def signature(self) -> str:
        """What every rank must agree on, as text: `all_reduce Float[1024]`."""
        shapes = ", ".join(str(list(s)) for s in self.shape)
        return f"{self.kind} {self.dtype}{shapes}" if self.shape else self.kind


def enable() -> None:
    """Switch the recorder on for process groups made after this call."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(BUFFER_ENTRIES))
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", str(BUFFER_ENTRIES))  # the name before torch 2.12


def collectives() -> list[Collective]:
    """Every collective that this rank has issued and the ring still holds, oldest first."""
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    if dump is None:
        return []
    trace = pickle.loads(dump())
    return [_parse(entry) for entry in trace.get("entries", [])]


def _parse(entry: dict) -> Collective:
    kind = entry["profiling_name"].split(":", 1)[-1]
    inputs, outputs = entry["input_sizes"], entry["output_sizes"]
    return Collective(
        seq=entry["collective_seq_id"],
        group=entry["process_group"][0],
        kind=_KINDS.get(kind, kind),
        input_bytes=_bytes(inputs, entry["input_dtypes"]),
        output_bytes=_bytes(outputs, entry["output_dtypes"]),
        dtype=(entry["input_dtypes"] or [""])[0],
        shape=tuple(tuple(s) for s in inputs),
        issued_s=entry["time_created_ns"] / 1e9,
        where=_where(entry.get("frames", [])),
    )


def _bytes(shapes: list[list[int]], dtypes: list[str]) -> int:
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=False):
        elements = 1
        for n in shape:
            elements *= n
        total += elements * _BYTES.get(dtype, 1)
    return total


def _where(frames: list[dict]) -> str:
    """The caller's own line: frames come innermost first, and torch's own are of no help."""
    for frame in frames:
        file = frame["filename"].replace(os.sep, "/")
        if "/torch/" not in file and not file.startswith("<frozen"):
            return f"{os.path.basename(file)}:{frame['line']} in {frame['name']}"
    return ""


def first_disagreement(by_rank: dict[int, list[Collective]]) -> str | None:
    """The first collective on which the ranks differ, in words, or None.

    Ranks must issue the same collectives in the same order on a group; when they do not, the job hangs or, worse,
    mixes up tensors. The sequence number says where it began.
    """
    calls: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank, log in by_rank.items():
        for c in log:
            calls.setdefault((c.group, c.seq), {})[rank] = c
    for (_, seq), ranks in sorted(calls.items(), key=lambda item: item[0][1]):
        if len(Counter(c.signature for c in ranks.values())) > 1:
            said = "; ".join(f"rank {r}: {c.signature} at {c.where or '?'}" for r, c in sorted(ranks.items()))
            return f"the ranks disagree from collective #{seq} on: {said}"
    return None
