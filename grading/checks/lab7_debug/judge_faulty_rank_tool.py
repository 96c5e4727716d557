"""Part 1, the tool: judge whether it finds the rank at fault in the records of runs that hang."""

from grading.checks.lab7_debug.hang_evidence import KINDS, MESHES, Hang, hang
from grading.judge.session import Session
from grading.judge.verdict import Verdict

EACH = 4  # runs of each kind and mesh; in the first of those that leave out a call, it comes twice in a row


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give half of the points if every run with one axis is right."""
    hangs = [
        hang(s.seed * EACH + i, kind, mesh, twice=i == 0) for kind in KINDS for mesh in MESHES for i in range(EACH)
    ]
    found = s.order(check, "diagnoses", world_size=1, device="cpu", records=[h.records for h in hangs])[0]
    wrong = [(h, tuple(f)) for h, f in zip(hangs, found, strict=True) if tuple(f) != h.fault]
    wrong_1d = [pair for pair in wrong if pair[0].mesh[0] == 1]
    flat = sum(h.mesh[0] == 1 for h in hangs)
    figures = {
        "FSDP runs diagnosed": (f"{flat - len(wrong_1d)} of {flat}", f"{flat}, for half of the points"),
        "HSDP runs diagnosed": (f"{len(hangs) - flat - len(wrong) + len(wrong_1d)} of {len(hangs) - flat}", "all"),
    }
    if not wrong:
        return Verdict(
            check, points, points, "every rank at fault was found, and where it left the others.", "", figures
        )
    earned = 0 if wrong_1d else points / 2
    return Verdict(check, earned, points, _cause(*(wrong_1d or wrong)[0]), _listing(*(wrong_1d or wrong)[0]), figures)


def _cause(h: Hang, found: tuple) -> str:
    rank, axis, seq = h.fault
    replicas, width = h.mesh
    run = f"a run of {replicas * width} ranks ({replicas} x {width}) in which a rank {h.kind}"
    run += " a collective" if h.kind == "leaves out" else ""
    if found[0] == -1:
        return f"{run}: your diagnosis fails with {found[1]}"
    if found[0] != rank:
        waits = "waits, as its peers do" if any(not e[4] for e in h.records[rank]) else "waits for nobody"
        return f"{run}: you name rank {found[0]}, but that one is innocent. The one at fault {waits}."
    return f"{run}: rank {rank} is right, but not where it left the others: you say {found[1:]}."


def _listing(h: Hang, found: tuple) -> str:
    answered = f"; you answered {found}" if found[0] != -1 else ""
    lines = [f"The records of that run, oldest first{answered}:"]
    for rank, log in enumerate(h.records):
        calls = (f"{axis} #{seq} {call}{'' if finished else ' (waits)'}" for axis, _, seq, call, finished in log[-7:])
        lines.append(f"rank {rank}: ... " + ", ".join(calls))
    return "\n".join(lines)
