"""Turn what the launcher knows of each rank into one LaunchError, which names the rank at fault."""

import re
from typing import TYPE_CHECKING

from shardlab.launch import flight_recorder
from shardlab.launch.hang_report import faulty_ranks, first_disagreement, laggard, named, stuck_collectives
from shardlab.launch.notebook_tracebacks import name_cells
from shardlab.launch.rank_main import SETUP

if TYPE_CHECKING:
    from shardlab.launch.rank_process import RankProcess

# How gloo and NCCL report that a peer is lost: a consequence of the failure, never its cause.
_PEER_GONE = re.compile(r"Connection (closed|reset|refused)|Broken pipe|remote process exited|Socket Timeout")
_MACHINERY = re.compile(r"shardlab/launch/|/multiprocessing/|/threading\.py|<string>|^Extension mod")


class LaunchError(RuntimeError):
    """A failed rank or a hang of the job. `rank` is the rank at fault, or None for a hang that no single rank explains.

    `killed`: a signal ended the rank; the system may have sent it because memory ran out.
    """

    def __init__(self, message: str, rank: int | None, timed_out: bool = False, killed: bool = False) -> None:
        super().__init__(message)
        self.rank = rank
        self.timed_out = timed_out
        self.killed = killed


def failure(ranks: list["RankProcess"]) -> LaunchError:
    """Return the error that names the rank at fault, the first of these: the only rank that called another collective,
    one that vanished, the first to raise (errors of a lost peer excluded), one that left early, the first to raise."""
    disagreement, odd = _disagreement(ranks)
    culprit = ranks[odd] if odd is not None else _culprit(ranks)
    did = "called another collective than the others and " if odd is not None else ""
    head = f"rank {culprit.number} of {len(ranks)} {did}{_fate(culprit)}"
    if culprit.failure:
        body = culprit.failure.traceback.rstrip()
    elif culprit.result is not None:
        body = "Every rank must take part in every collective of its group: look for a branch that only some take."
    elif culprit.exit_code is None:
        body = _stack(culprit)
    else:
        lines = [line for line in culprit.tail if not _MACHINERY.search(line)][-25:]
        body = "Its last output:\n" + "\n".join(f"  {line}" for line in lines) if lines else "It printed nothing."
    others = [_state(r) for r in ranks if r is not culprit]
    killed = culprit.exit_code is not None and culprit.exit_code < 0
    return _error([head, body, disagreement, "\n".join(others)], culprit.number, killed=killed)


def is_undecided(ranks: list["RankProcess"]) -> bool:
    """Return True if two ranks called different things and a third rank's call would tell which of them is wrong."""
    disagreement, odd = _disagreement(ranks)
    return disagreement is not None and odd is None and len(ranks) > 2


def not_ready(ranks: list["RankProcess"], within_s: float) -> LaunchError:
    """Return the error of ranks that were not ready in time. `rank` is the only one that the others wait for."""
    least = min(r.begun for r in ranks)
    behind = laggard({r.number: _log(r) for r in ranks})
    slow = [r for r in ranks if r.begun == least and behind in (None, r.number)]
    who, each = named(r.number for r in slow), "each" if len(slow) > 1 else "it"
    head = f"{who} of {len(ranks)} did not get ready in {within_s:g} s: {each} "
    body = "The function has not begun on all ranks."
    body += " With NCCL_DEBUG=INFO in the environment, NCCL says what it tries." if least == len(SETUP) - 1 else ""
    stacks = [f"rank {r.number} {SETUP[r.begun]}\n{_stack(r)}" for r in ranks if not r.ready]
    return _error([head + SETUP[least], body, *stacks], slow[0].number if len(slow) == 1 else None, timed_out=True)


def hang(ranks: list["RankProcess"], timeout_s: float) -> LaunchError:
    """Return the error of a hang: the last collectives, and the stack of each waiting rank. `rank` is the only one that
    waits, or that called another collective, or that the hang report names, or that called fewer than the others."""
    waiting = [r for r in ranks if r.result is None] or ranks  # all, if the missing results came after the deadline
    head = f"no result from {named(r.number for r in waiting)} within {timeout_s:g} s"
    disagreement, culprit = _disagreement(ranks)
    if culprit is not None:
        head += f": rank {culprit} called another collective than the others"
    elif len(waiting) > 1:
        logs = {r.number: _log(r) for r in waiting}
        behind, faulty = laggard(logs), faulty_ranks(logs)
        culprit = faulty[0] if len(faulty) == 1 else behind
        if culprit is not None:
            head += f": look at rank {culprit}" + ", which issued fewer collectives than others" * (culprit == behind)
    else:
        culprit = waiting[0].number
    stacks = [f"{_state(r)}\n{_stack(r)}" for r in waiting]
    known = {r.number: _log(r) for r in ranks if r.failure or r.whereabouts}
    return _error([head, disagreement, stuck_collectives(known), *stacks], culprit, timed_out=True)


def _culprit(ranks: list["RankProcess"]) -> "RankProcess":
    vanished = [r for r in ranks if r.vanished]
    raised = sorted((r for r in ranks if r.failure), key=lambda r: r.failure.at_s)
    own = [r for r in raised if not _PEER_GONE.search(r.failure.error)]
    left = [r for r in ranks if r.result is not None]
    behind = laggard({r.number: _log(r) for r in ranks})
    left.sort(key=lambda r: r.number != behind)
    return (vanished or own or left or raised)[0]


def _fate(r: "RankProcess") -> str:
    if r.failure:
        return f"raised {r.failure.error}"
    if r.result is not None:
        return "returned while others still waited for it"
    return "was running" if r.exit_code is None else f"{r.exit_in_words} before its function returned"


def _state(r: "RankProcess") -> str:
    log = _log(r)
    last = f"; last collective #{log[-1].seq}: {log[-1].signature} at {log[-1].where or '?'}" if log else ""
    return f"rank {r.number} {_fate(r)}{last}"


def _stack(r: "RankProcess") -> str:
    """Stack of the rank without the launcher's frames."""
    if r.failure:  # it raised after the deadline, while the launcher asked for stacks
        return r.failure.traceback.rstrip()
    if r.whereabouts is None:
        lines = [line for line in r.tail if not _MACHINERY.search(line)]
        return "\n".join(["  it did not answer: native code holds the interpreter", *(f"  {line}" for line in lines)])
    frames = r.whereabouts.stack.split('  File "')[1:]
    return "".join(f'  File "{f}' for f in frames if not _MACHINERY.search(f.split('"')[0])).rstrip()


def _log(r: "RankProcess") -> list[flight_recorder.Collective]:
    return r.failure.log if r.failure else r.whereabouts.log if r.whereabouts else []


def _disagreement(ranks: list["RankProcess"]) -> tuple[str | None, int | None]:
    return first_disagreement({r.number: _log(r) for r in ranks}) or (None, None)


def _error(parts: list[str | None], rank: int | None, **how: bool) -> LaunchError:
    return LaunchError(name_cells("\n\n".join(p for p in parts if p)), rank, **how)
