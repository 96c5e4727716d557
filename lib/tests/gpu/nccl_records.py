"""What NCCL's flight recorder writes for each call: names, shapes, and calls that take several entries.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (the fields); ProcessGroupNCCL.cpp (the names and
shapes).
"""

import itertools
import os
import sys
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor

_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "_allgather_base": "_all_gather_base",
    "all_gather_single": "_all_gather_base",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
}
_DTYPES = {torch.float64: "Double", torch.int64: "Long", torch.float32: "Float", torch.int32: "Int", torch.bool: "Bool"}
_DTYPES |= {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.uint8: "Byte", torch.int8: "Char"}


class Records:
    """The ring of this rank."""

    def __init__(self) -> None:
        self.entries: list[dict] = []
        self._calls, self._messages, self._number = Counter(), Counter(), itertools.count()

    def add(self, group: dist.ProcessGroup, name: str, outputs, inputs, args: tuple) -> dict:
        """Record a call and return its last entry, whose "work" the caller sets to gloo's."""
        pg = group.group_name, getattr(group, "group_desc", "undefined")
        if name in ("send", "recv"):
            self._messages[pg] += 1
            arrow, ranks = ("->", (group.rank(), args[1])) if name == "send" else ("<-", (group.rank(), args[1]))
            title = f"nccl:{name} {ranks[0]}{arrow}{ranks[1]}"
            return self._entry(pg, title, args[0], args[0], p2p=self._messages[pg])
        self._calls[pg] += 1
        outputs, inputs = _flat(outputs), _flat(inputs)
        longer = outputs if name == "allgather" else inputs
        if name in ("allgather", "reduce_scatter") and len({t.shape for t in longer}) > 1:
            one, all_ = ("_broadcast_oop", "ALLGATHER") if name == "allgather" else ("_reduce_oop", "REDUCE_SCATTER")
            for t in longer:
                own = longer[group.rank()] if name == "allgather" else t
                self._entry(pg, f"nccl:{one}", [own], [t if name == "allgather" else outputs[0]])
            return self._entry(pg, f"nccl:{all_}_coalesced", [], [])
        if name == "allgather":
            outputs = [torch.empty((len(outputs), *outputs[0].shape), dtype=outputs[0].dtype, device="meta")]
        if name == "reduce_scatter":
            inputs = [torch.empty((len(inputs), *inputs[0].shape), dtype=inputs[0].dtype, device="meta")]
        return self._entry(pg, f"nccl:{_NAMES[name]}", inputs, outputs)

    def _entry(self, pg: tuple, name: str, inputs: list[Tensor], outputs: list[Tensor], p2p: int = 0) -> dict:
        entry = {
            "record_id": next(self._number),
            "pg_id": int(pg[0]) if pg[0].isdigit() else 0,
            "process_group": pg,
            "collective_seq_id": self._calls[pg],
            "p2p_seq_id": p2p,
            "op_id": self._calls[pg],
            "profiling_name": name,
            "time_created_ns": time.time_ns(),
            "is_p2p": bool(p2p),
            "frames": _frames(),
            "work": None,
        }
        for side, tensors in (("input", inputs), ("output", outputs)):
            entry[f"{side}_sizes"] = [list(t.shape) for t in tensors]
            entry[f"{side}_dtypes"] = [_DTYPES[t.dtype] for t in tensors]
        self.entries.append(entry)
        return entry

    def dump(self) -> dict:
        """Return what `_dump_nccl_trace` pickles."""
        times = os.environ.get("TORCH_NCCL_ENABLE_TIMING") == "1"  # or NCCL does not record that a call has started
        found, under_way = [], set()  # groups whose stream is in a call: their next one has not started
        for entry in self.entries:
            done = entry["work"] is not None and entry["work"].is_completed()
            started = times and entry["process_group"] not in under_way
            state = "completed" if done else "started" if started else "scheduled"
            under_way |= set() if done else {entry["process_group"]}
            found.append(entry | {"work": None, "state": state, "retired": done})
        return {"version": "2.10", "entries": found, "pg_config": {}, "pg_status": {}}


def _flat(tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else [t for each in tensors for t in _flat(each)]


def _frames() -> list[dict]:
    frames, frame = [], sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames
