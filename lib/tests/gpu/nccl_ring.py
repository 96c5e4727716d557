"""Write the flight recorder's entries as torch does on NCCL, without NCCL: the same counters, names and shapes.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (torch 2.13): `initWork`, `collective`, `collectiveCoalesced`,
`pointToPoint`, `startCoalescing`, `endCoalescing`, `workEnqueue`, and the methods named below; `dump` and the keys are
those of FlightRecorderDetail.hpp.
"""

from itertools import count

Shape = list[int]


class NcclRing:
    """One rank's ring. Every method is one call of the program on one group."""

    def __init__(self, rank: int, groups: dict[str, list[int]]) -> None:
        self.rank, self.groups = rank, groups
        self.entries: list[dict] = []
        self.collectives, self.messages, self.operations = (dict.fromkeys(groups, 0) for _ in range(3))
        self.enqueued = dict.fromkeys(groups, 0)  # lastEnqueuedSeq: of collectives and of messages
        self.clock = count(1_000_000_000, 1_000_000)

    # ------------------------------------------------------------------------------------------ one entry a call

    def all_reduce(self, shape: Shape, group: str = "0", **how) -> None:
        self._collective(group, "nccl:all_reduce", [shape], [shape], **how)

    def all_gather_into_tensor(self, share: Shape, group: str = "0", **how) -> None:
        self._collective(group, "nccl:_all_gather_base", [share], [[share[0] * self._n(group), *share[1:]]], **how)

    def reduce_scatter_tensor(self, share: Shape, group: str = "0", **how) -> None:
        whole = [share[0] * self._n(group), *share[1:]]
        self._collective(group, "nccl:_reduce_scatter_base", [whole], [share], **how)

    def all_to_all(self, into: Shape, out: Shape, group: str = "0", **how) -> None:
        self._collective(group, "nccl:all_to_all", [into], [out], **how)

    def barrier(self, group: str = "0", **how) -> None:
        self._collective(group, "nccl:all_reduce_barrier", [[1]], [[1]], **how)

    def scatter(self, share: Shape, group: str = "0", **how) -> None:
        """`scatter` hands `collective` its outputs as inputs; ranks other than the root have one undefined tensor."""
        shares = [share] * self._n(group) if self._place(group) == 0 else [[0]]
        self._collective(group, "nccl:scatter", [share], shares, **how)

    def even_lists(self, share: Shape, group: str = "0", **how) -> None:
        """`allgather` and `reduce_scatter` of equal shapes go through one flat tensor."""
        flat = [self._n(group), *share]
        self._collective(group, "nccl:all_gather", [share], [flat], **how)
        self._collective(group, "nccl:reduce_scatter", [flat], [share], **how)

    def gathers_coalesced(self, shares: list[Shape], group: str = "0", **how) -> None:
        """`allgather_into_tensor_coalesced` is one entry with all tensors (collectiveCoalesced)."""
        wholes = [[share[0] * self._n(group), *share[1:]] for share in shares]
        self._collective(group, "nccl:all_gather_into_tensor_coalesced", shares, wholes, **how)

    # -------------------------------------------------------------------------------------- several entries a call

    def uneven_reduce_scatter(self, shapes: list[Shape], group: str = "0", **how) -> None:
        """`reduce_scatter` of a list of unequal shapes: a `_reduce_oop` to each rank, with an output on that one."""
        self._coalesced(group, "nccl:_reduce_oop", [([s], [s]) for s in shapes], "nccl:REDUCE_SCATTER_coalesced", **how)

    def uneven_all_gather(self, shapes: list[Shape], group: str = "0", **how) -> None:
        self._coalesced(group, "nccl:_broadcast_oop", [([s], [s]) for s in shapes], "nccl:ALLGATHER_coalesced", **how)

    def coalescing_manager(self, shapes: list[Shape], group: str = "0", **how) -> None:
        self._coalesced(group, "nccl:all_reduce", [([s], [s]) for s in shapes], "nccl:coalesced", **how)

    def send(self, shape: Shape, peer: int, group: str = "0", **how) -> None:
        self.messages[group] += 1
        self.operations[group] += 1
        self._message(group, f"nccl:send {self._place(group)}->{peer}", shape, **how)
        self.enqueued[group] = self.messages[group]

    def batch_send_recv(self, shape: Shape, group: str = "0", **how) -> None:
        """`batch_isend_irecv` round the ring: one message number for all, and a closing entry that is not marked."""
        self.messages[group] += 1
        n, me = self._n(group), self._place(group)
        for name in (f"nccl:send {me}->{(me + 1) % n}", f"nccl:recv {me}<-{(me - 1) % n}"):
            self.operations[group] += 1
            self._message(group, name, shape)
        self._entry(group, "nccl:coalesced", [], [], **how)
        self.enqueued[group] = self.messages[group]

    # ------------------------------------------------------------------------------------------------------- the dump

    def dump(self, only_active: bool = False, with_groups: bool = True) -> dict:
        """Return what `_dump_nccl_trace` pickles; `completed`, in pg_status, is what no entry contradicts."""
        entries = [e for e in self.entries if not (only_active and e["state"] == "completed")]
        config = {name: {"name": name, "desc": "undefined", "ranks": str(r)} for name, r in self.groups.items()}
        status = {}
        for number, name in enumerate(sorted(self.groups, key=int)):
            mine = [e for e in self.entries if e["process_group"][0] == name and e["closed"] != "completed"]
            first = min((e["p2p_seq_id" if e["is_p2p"] else "collective_seq_id"] for e in mine), default=None)
            through = self.enqueued[name] if first is None else first - 1
            last = {"last_enqueued_collective": self.enqueued[name], "last_started_collective": -1}
            status[str(number)] = {**last, "last_completed_collective": through}
        plain = [{key: value for key, value in e.items() if key != "closed"} for e in entries]
        pg_config = config if with_groups else {}
        return {"version": "2.10", "pg_config": pg_config, "pg_status": status, "entries": plain}

    def _n(self, group: str) -> int:
        return len(self.groups[group])

    def _place(self, group: str) -> int:
        return self.groups[group].index(self.rank)

    def _collective(self, group: str, name: str, into: list[Shape], out: list[Shape], **how) -> None:
        self.collectives[group] += 1
        self.operations[group] += 1
        self.enqueued[group] = self.collectives[group]
        self._entry(group, name, into, out, **how)

    def _coalesced(self, group: str, name: str, parts: list, closing: str, state: str = "completed", **how) -> None:
        self.collectives[group] += 1
        self.enqueued[group] = self.collectives[group]
        for into, out in parts:
            self.operations[group] += 1
            self._entry(group, name, into, out, state="scheduled", closed=state, **how)
        self._entry(group, closing, [], [], state=state, **how)

    def _message(self, group: str, name: str, shape: Shape, state: str = "scheduled", **how) -> None:
        self._entry(group, name, [shape], [shape], state=state, closed="completed", is_p2p=True, **how)

    def _entry(self, group: str, name: str, into: list, out: list, state: str = "completed", **how) -> None:
        dtype = how.get("dtype", "Float")
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": sorted(self.groups, key=int).index(group),
                "process_group": (group, "undefined"),
                "collective_seq_id": self.collectives[group],
                "p2p_seq_id": self.messages[group],
                "op_id": self.operations[group],
                "profiling_name": name,
                "time_created_ns": how.get("at_ns", next(self.clock)),
                "input_sizes": into,
                "input_dtypes": ["Undefined" if s == [0] else dtype for s in into],
                "output_sizes": out,
                "output_dtypes": ["Undefined" if s == [0] else dtype for s in out],
                "state": state,
                "retired": state == "completed",
                "is_p2p": how.get("is_p2p", False),
                "frames": [{"filename": "/home/train.py", "line": 7, "name": "step"}],
                "closed": how.get("closed", state),
            }
        )
