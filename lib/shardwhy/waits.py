"""Who waits for whom: from torch's flight records, one file for each rank, or from py-spy's dumps of the ranks' stacks.

The fields of a record are those of torch/csrc/distributed/c10d/FlightRecorder.hpp. A record is a pickle, and may come
from anywhere: only plain data are read, and nothing in it is executed.
"""

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwhy.logs import Log, ranks_in_words

COLLECTIVES = ("/distributed/distributed_c10d.py", "/distributed/_functional_collectives.py")
NOT_THE_CALLER = re.compile(r"(?:^|/)torch/|/lib/python3|<frozen|<string>")
THREAD = re.compile(r'^Thread (?:0x)?\w+ \([^)]*\)(?:: "(?P<name>[^"]*)")?')
FRAME = re.compile(r"^\s+(?P<name>\S.*?) \((?P<place>[^()]*:\d+)\)$")
THREAD_OF = ", thread "
PROCESS = re.compile(r"^Process (\d+): ")


@dataclass(frozen=True)
class Call:
    """One collective of a rank."""

    kind: str
    sizes: str
    where: str
    completed: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.sizes}, called at {self.where}"


@dataclass(frozen=True)
class Record:
    """The flight record of one rank: by group, its calls by their number in the group."""

    rank: int
    calls: Mapping[str, Mapping[int, Call]]
    members: Mapping[str, tuple[int, ...]]  # ranks of a group, where the record knows them


class _OnlyPlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def record_of(file: Path) -> Record | None:
    """Return the flight record in a file, or None if it holds something else. The file's name ends with the rank."""
    numbers = re.findall(r"\d+", file.name)
    with file.open("rb") as stream:
        start = stream.read(1)
        if not numbers or start not in (b"\x80", b"{"):
            return None
        data = start + stream.read()
    try:
        dump = _OnlyPlainData(io.BytesIO(data)).load() if start == b"\x80" else json.loads(data)
        calls: dict[str, dict[int, Call]] = {}
        for entry in dump["entries"]:
            if not entry["is_p2p"]:
                calls.setdefault(_group(entry), {})[entry["collective_seq_id"]] = _call(entry)
        members = {
            group["desc"] or name or "default_pg": tuple(json.loads(group["ranks"]))
            for name, group in dump.get("pg_config", {}).items()
        }
    except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, EOFError, IndexError):
        return None
    return Record(int(numbers[-1]), calls, members)


def _group(entry: dict) -> str:
    name, description = entry["process_group"]
    return description if description not in ("", "undefined") else name


def _call(entry: dict) -> Call:
    kind = entry["profiling_name"].rpartition(":")[2]
    uneven = any(word in kind for word in ("scatter", "all_to_all", "gather"))
    frames = [f"{f['filename']}:{f['line']}" for f in entry.get("frames", [])]
    return Call(kind, "" if uneven else str(entry["input_sizes"]), _caller(frames), entry["state"] == "completed")


def _caller(places: Iterable[str]) -> str:
    places = list(places)
    ours = next((place for place in places if not NOT_THE_CALLER.search(place)), places[0] if places else "?")
    return ours.rpartition("/")[2]


def answer_records(records: list[Record]) -> list[str]:
    """Return who waits for whom by the records, in at most ten lines."""
    lines = [f"Flight records of {len(records)} ranks."]
    for group in sorted({group for record in records for group in record.calls}):
        members = {rank for r in records for rank in r.members.get(group, ())}
        lines += _group_answer(group, [r for r in records if group in r.calls or r.rank in members])
    known = {rank for record in records for ranks in record.members.values() for rank in ranks}
    if missing := sorted(known - {record.rank for record in records}):
        lines.append(f"There is no record of {ranks_in_words(missing)}: such a rank may have ended. Read its log.")
    return [*lines[:9], "Read: course/13a_hangs.ipynb"]


def _group_answer(group: str, records: list[Record]) -> list[str]:
    last = {r.rank: max(r.calls.get(group, {0: None})) for r in records}
    calls = {r.rank: r.calls.get(group, {}) for r in records}
    if different := _first_difference(calls):
        number, by_call = different
        said = "; ".join(f"{ranks_in_words(ranks)}: {call}" for call, ranks in by_call.items())
        return [f"First cause: call #{number} of group {group} is not the same on all ranks. {said}"]
    least, most = min(last.values()), max(last.values())
    if least < most:
        behind = [rank for rank, number in last.items() if number == least]
        ahead = [rank for rank, number in last.items() if number > least]
        waited_for = calls[ahead[0]].get(least + 1, "an older call")
        lines = [f"First cause: {ranks_in_words(behind)} did not make call #{least + 1} of group {group}: {waited_for}"]
        lines.append(f"{ranks_in_words(ahead)} made it, and wait.")
        if least in calls[behind[0]]:
            call = calls[behind[0]][least]
            lines.append(f"The last call of {ranks_in_words(behind)} is #{least}: {call}. Look behind that line.")
        return lines
    waiting = [rank for rank, number in last.items() if number in calls[rank] and not calls[rank][number].completed]
    if waiting:
        return [
            f"All ranks made call #{most} of group {group}, and it has not ended on {ranks_in_words(waiting)}: "
            f"{calls[waiting[0]][most]}. The network or a GPU is the likely cause."
        ]
    return [f"No rank waits in group {group}: its last call, #{most}, has ended on all ranks."]


def _first_difference(calls: Mapping[int, Mapping[int, Call]]) -> tuple[int, dict[str, list[int]]] | None:
    common = set.intersection(*(set(of_rank) for of_rank in calls.values())) if calls else set()
    for number in sorted(common):
        by_kind: dict[tuple[str, str], list[int]] = {}
        for rank, of_rank in calls.items():
            by_kind.setdefault((of_rank[number].kind, of_rank[number].sizes), []).append(rank)
        if len(by_kind) > 1:
            return number, {str(calls[ranks[0]][number]): ranks for ranks in by_kind.values()}
    return None


def stacks_of(log: Log) -> list[tuple[str, str, bool]]:
    """Return (process, where its main thread is, whether it waits in a collective) for each py-spy dump in the log.

    Another thread, such as that of an asynchronous save, is returned only if it waits in a collective, too.
    """
    if b"Thread " not in log.data[:2000] or b"MainThread" not in log.data:
        return []
    found: list[tuple[str, str, bool]] = []
    process = f"rank {log.rank}" if log.rank is not None else log.name
    other = ""  # the name of a thread that is not the main one
    frames: list[tuple[str, str]] = []

    def end() -> None:
        if frames:
            waits = next(
                (name for name, place in reversed(frames) if place.rpartition(":")[0].endswith(COLLECTIVES)), ""
            )
            place = _caller(place for _, place in frames)
            if waits or not other:
                who = process + (f"{THREAD_OF}{other}" if other else "")
                found.append((who, f"waits in {waits}, called at {place}" if waits else f"is at {place}", bool(waits)))

    for line in log.data.decode("utf-8", "replace").splitlines():
        if named := PROCESS.match(line):
            end()
            frames = []
            process = f"rank {log.rank}" if log.rank is not None else f"process {named[1]}"
        if thread := THREAD.match(line):
            end()
            frames, other = [], "" if thread["name"] == "MainThread" else thread["name"] or "without a name"
        elif frame := FRAME.match(line):
            frames.append((frame["name"], frame["place"]))
    end()
    return found


def answer_stacks(stacks: list[tuple[str, str, bool]]) -> list[str]:
    """Return who waits, and who does not, in at most ten lines."""
    by_place: dict[tuple[bool, str], list[str]] = {}
    for process, place, waits in stacks:
        by_place.setdefault((waits, place), []).append(process)
    lines = [f"Stacks of {sum(THREAD_OF not in who for who, _, _ in stacks)} processes."]
    waiting = {who for who, _, waits in stacks if waits}
    of_two_threads = [who for who in waiting if who.partition(THREAD_OF)[0] in waiting - {who}]
    outside = [(place, who) for (waits, place), who in by_place.items() if not waits]
    inside = [(place, who) for (waits, place), who in by_place.items() if waits]
    lines += [f"{', '.join(who[:8])}: {place}" for place, who in (*outside, *inside)][:6]
    if of_two_threads:
        lines.append("First cause: two threads of a process make collectives at the same time. On one group, ranks may")
        lines.append("make them in different orders. Give the second thread a group of its own: dist.new_group().")
    elif outside and inside:
        lines.append("Those that are outside of a collective are the likely first cause: the others wait for them.")
    elif len(inside) > 1:
        lines.append(
            "The processes wait in different calls. The first line of code at which they part is the likely cause."
        )
    else:
        lines.append("All processes are at the same place. Flight records say which call has not ended.")
    return [*lines, "Read: course/13a_hangs.ipynb"]
