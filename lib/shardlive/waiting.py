"""Say who waits for whom among ranks that stay, in words that a beginner understands, and what frees them.

No time-out decides. A rank waits if its thread sits in a collective that its flight record calls unfinished. If every
rank with a cell waits, and the ranks they wait for have no cell, nothing can move until the reader does something.
"""

from shardlab.launch.flight_recorder import POINT_TO_POINT, Collective
from shardlab.launch.rank_names import named
from shardlive.rank_side import Place


def pending(places: dict[int, Place], certain: bool = False) -> str:
    """Return who waits for whom, in words; "" if a rank computes.

    A call that all its ranks have made may be under way, and so may a message if all ranks wait: gloo records none. So
    "" if only what is `certain` is asked for.
    """
    busy = {r: p for r, p in places.items() if p.is_busy}
    if not busy or not all(p.waits for p in busy.values()):
        return ""
    open_calls = {r: c for r, p in busy.items() if (c := _open(p.log)) is not None}
    said = []
    if messages := [r for r in busy if r not in open_calls]:
        if certain and len(busy) == len(places):
            return ""
        where = "; ".join(f"{named([r])} waits at {busy[r].line}" for r in messages)
        free = "run that there" if len(busy) < len(places) else "if none does, restart"
        said.append(f"{where}. It ends when another rank sends or receives what it waits for: {free}.")
    for call in dict.fromkeys((c.group, c.backend, c.seq) for c in open_calls.values()):
        waiting = {r: c for r, c in open_calls.items() if (c.group, c.backend, c.seq) == call}
        if not (words := _words(waiting, places, certain)):
            return ""  # this one may be under way
        said.append(words)
    return "\n".join(said)


def _open(log: list[Collective]) -> Collective | None:
    return next((c for c in log if c.state != "finished" and c.kind not in POINT_TO_POINT), None)


def _words(waiting: dict[int, Collective], places: dict[int, Place], certain: bool) -> str:
    """Say of one call who waits in it, for whom, and what frees them. If every member has called it alike: "" if
    `certain` is asked."""
    ranks, first = sorted(waiting), next(iter(waiting.values()))
    line = places[ranks[0]].line
    who, verb = named(ranks), "waits" if len(ranks) == 1 else "wait"
    kinds = {}
    for r, c in waiting.items():
        kinds.setdefault(c.agreed, []).append(r)
    if len(kinds) > 1:
        calls = ", ".join(f"{named(rs)} {'is' if len(rs) == 1 else 'are'} in {kind}" for kind, rs in kinds.items())
        return f"{calls}: a group's ranks must make the same calls, with the same shapes. Nothing frees them: restart."
    missing = [r for r in first.members if r not in waiting and not _has_called(places.get(r), first)]
    if not missing and certain:
        return ""
    if not missing:
        return (
            f"{who} {verb} in {first.signature}, {line}. All its ranks have called it. So it is under way, or an "
            "argument, such as src or dst, differs between them. Then nothing frees it: restart."
        )
    idle = [r for r in missing if r in places and not places[r].is_busy]
    dead = [r for r in missing if r not in places]
    text = f"{who} {verb} in {first.signature}, {line}, for {named(missing)}"
    if dead:
        return f"{text}, and {named(dead)} {'has' if len(dead) == 1 else 'have'} ended: restart."
    if idle == missing:
        return f"{text}. Pending: run the same call on {named(missing)}, and it ends."
    return f"{text}: {named([r for r in missing if r not in idle])} must leave another call first."


def _has_called(place: Place | None, call: Collective) -> bool:
    mine = [c for c in place.log if (c.group, c.backend) == (call.group, call.backend)] if place else []
    return any(c.seq >= call.seq and c.kind not in POINT_TO_POINT for c in mine)
