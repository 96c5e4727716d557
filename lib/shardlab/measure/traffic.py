"""Record what a rank sends: which collectives and messages, how many, how many bytes, and when."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from shardlab.launch import flight_recorder
from shardlab.measure.functional_calls import functional_calls
from shardlab.measure.store_writes import store_writes


@dataclass
class Traffic:
    """The collectives, sends, recvs and writes into a store of this rank inside a `record_traffic` block, in order."""

    started_s: float  # seconds since the epoch, like the collectives' issue times
    collectives: list[flight_recorder.Collective] = field(default_factory=list)

    def count(self, kind: str | None = None) -> int:
        return sum(kind in (None, c.kind) for c in self.collectives)

    def kinds(self) -> Counter:
        return Counter(c.kind for c in self.collectives)

    def wire_bytes(self, world_size: int) -> float:
        """Bytes that this rank puts on the wire when every collective runs as a ring."""
        return sum(wire_bytes(c, world_size) for c in self.collectives)

    def sent_bytes(self, kind: str | None = None) -> float:
        """Bytes on the wire, with each collective's own group size (hybrid sharding has two). Call it on the rank."""
        of_kind = (c for c in self.collectives if kind in (None, c.kind))
        return sum(wire_bytes(c, _resolve_process_group(c.group).size()) for c in of_kind)


def wire_bytes(c: flight_recorder.Collective, world_size: int) -> float:
    """Bytes a rank sends for one collective as a ring of N: the textbook's bandwidth-optimal algorithms.

    all_reduce: 2 (N-1)/N of the tensor; all_gather and reduce_scatter: (N-1)/N of the whole (unsharded) tensor;
    all_to_all: the rank's input without its own part, or (N-1)/N of it if the parts are not known; broadcast, reduce
    and all other kinds: (N-1)/N of the input, the mean over ranks, since one rank sends nothing. A send's input is its
    message, which counts in full; a recv has no input. A write into the store counts in full, too.
    Source: Thakur, Rabenseifner & Gropp 2005, sections 4.1, 4.2, 4.5.
    """
    share, whole = (world_size - 1) / world_size, max(c.input_bytes, c.output_bytes)
    if c.kind == "all_reduce":
        return 2 * share * whole
    if c.kind in ("all_gather", "reduce_scatter"):
        return share * whole
    if c.own_bytes is not None:
        return c.input_bytes - c.own_bytes
    return c.input_bytes if c.kind in ("send", "store") else share * c.input_bytes


@contextmanager
def record_traffic():
    """Record everything that this rank issues inside the block; the record is complete when the block ends.

    Raises RuntimeError if the flight recorder's ring overflowed meanwhile: an incomplete record would mislead.
    """
    traffic = Traffic(started_s=time.time())
    notes: list[flight_recorder.Collective] = []
    with (
        functional_calls() as functional,
        _messages() as (messages, own_parts),
        store_writes(lambda n_bytes: notes.append(_note(n_bytes))),
    ):
        yield traffic
    issued = [c for c in flight_recorder.collectives() if c.issued_s >= traffic.started_s]
    in_ring = Counter(c.backend for c in issued for _ in range(c.entries))
    if max(in_ring.values(), default=0) >= (kept := flight_recorder.kept_entries()):
        raise RuntimeError(f"the flight recorder keeps {kept} collectives: record fewer steps at once")
    issued = [c for c in issued if c.kind not in flight_recorder.POINT_TO_POINT]  # `messages` has NCCL's, too
    own_parts += functional.own_parts
    issued = [_with_own_part(functional.as_asked_for(c), own_parts) for c in issued]
    traffic.collectives += sorted(issued + messages + notes, key=lambda c: c.issued_s)


def _with_own_part(c: flight_recorder.Collective, own_parts: list[tuple[str, int, int]]) -> flight_recorder.Collective:
    """Return an all_to_all with the bytes that stay on this rank (removed from the list); anything else unchanged."""
    same_call = (part for part in own_parts if c.kind == "all_to_all" and part[:2] == (c.group, c.input_bytes))
    if (mine := next(same_call, None)) is None:
        return c
    own_parts.remove(mine)
    return replace(c, own_bytes=mine[2])


@contextmanager
def _messages() -> Iterator[tuple[list[flight_recorder.Collective], list[tuple[str, int, int]]]]:
    """Collect what the flight recorder does not know: gloo's sends and recvs, and the parts of an all_to_all.

    A part is (group, bytes of the whole input, bytes that stay on this rank). All of torch's calls, batch_isend_irecv's
    too, end in these methods of the process group. Functional collectives don't: see `functional_calls`. The methods'
    replacements must have the same names: by the name, pybind sees that an override calls its base method.
    """
    found: list[flight_recorder.Collective] = []
    own_parts: list[tuple[str, int, int]] = []
    group_class, originals = dist.ProcessGroup, {}

    def add_parts(group, parts) -> None:
        own_parts.append((group.group_name, sum(t.nbytes for t in parts), parts[group.rank()].nbytes))

    def all_to_all_single(group, output, input, output_splits, input_splits, *args, **options):
        add_parts(group, input.split(list(input_splits)) if input_splits else input.tensor_split(group.size()))
        return originals["all_to_all_single"](group, output, input, output_splits, input_splits, *args, **options)

    def alltoall_base(group, output, input, output_splits, input_splits, *args, **options):  # before torch 2.13
        add_parts(group, input.split(list(input_splits)) if input_splits else input.tensor_split(group.size()))
        return originals["alltoall_base"](group, output, input, output_splits, input_splits, *args, **options)

    def alltoall(group, outputs, inputs, *args, **options):
        add_parts(group, inputs)
        return originals["alltoall"](group, outputs, inputs, *args, **options)

    def send(group, tensors, *args, **options):
        found.extend(_message(group, "send", t) for t in tensors)
        return originals["send"](group, tensors, *args, **options)

    def recv(group, tensors, *args, **options):
        found.extend(_message(group, "recv", t) for t in tensors)
        return originals["recv"](group, tensors, *args, **options)

    def recv_anysource(group, tensors, *args, **options):
        found.extend(_message(group, "recv", t) for t in tensors)
        return originals["recv_anysource"](group, tensors, *args, **options)

    wrapped = (send, recv, recv_anysource, all_to_all_single, alltoall_base, alltoall)
    for method in (m for m in wrapped if m.__name__ in vars(group_class)):
        originals[method.__name__] = vars(group_class)[method.__name__]
        setattr(group_class, method.__name__, method)
    try:
        yield found, own_parts
    finally:
        for name, original in originals.items():
            setattr(group_class, name, original)


def _message(group: dist.ProcessGroup, kind: str, tensor) -> flight_recorder.Collective:
    sent, dtype = kind == "send", tensor.type().split(".")[-1].removesuffix("Tensor")
    n_in, n_out = tensor.nbytes if sent else 0, 0 if sent else tensor.nbytes
    return _by_one(group, kind, n_in, n_out, dtype, tuple(tensor.shape))


def _note(n_bytes: int) -> flight_recorder.Collective:
    """Return a write into the store."""
    return _by_one(dist.group.WORLD, "store", n_bytes, 0, "Byte", (n_bytes,))


def _by_one(group: dist.ProcessGroup, kind: str, n_in: int, n_out: int, dtype: str, shape: tuple[int, ...]):
    """Return what this rank does alone, at this moment, as a collective."""
    return flight_recorder.Collective(
        seq=0,  # messages have no order that ranks share
        group=group.group_name,
        kind=kind,
        input_bytes=n_in,
        output_bytes=n_out,
        dtype=dtype,
        shape=(shape,),
        issued_s=time.time(),
        where=flight_recorder.where(_stack()),
    )


def _stack() -> list[dict]:
    """Frames of this thread, innermost first, in the form that the flight recorder writes."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back
    return frames
