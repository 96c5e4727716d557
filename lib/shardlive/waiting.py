"""Say who waits for whom among ranks that stay, in words that a beginner understands, and what frees them.

No time-out decides. A rank waits if its thread sits in a collective that its flight record calls unfinished. If every
rank with a cell waits, and the ranks they wait for have no cell, nothing can move until the reader does something.
"""

from collections.abc import Iterable

from shardlab.launch.flight_recorder import POINT_TO_POINT, Collective
from shardlab.launch.hang_report import named
from shardlive.rank_side import Place
from shardlive.show import alike


def pending(places: dict[int, Place], left: Iterable[int] = ()) -> tuple[str, bool]:
    """Return who waits for whom, in words, and whether nothing moves for certain; ("", False) if a rank computes.

    Those in `left` may compute, since an earlier cell: they are named, too. A call that all its ranks have made may be
    under way, and so may a message if all ranks wait: gloo records none.
    """
    busy = {r: p for r, p in places.items() if p.is_busy}
    computing = [r for r, p in busy.items() if not p.waits]
    if not busy or not set(computing) <= set(left):
        return "", False
    calls = {r: open_call(p.log) for r, p in busy.items() if p.waits}
    same = {_place_in_order(call): call for call in calls.values() if call}
    parts = [_words([r for r, c in calls.items() if c and _place_in_order(c) == at], same[at], places) for at in same]
    if messages := [r for r, call in calls.items() if call is None]:
        where = "; ".join(f"{named([r])} waits at {busy[r].line}" for r in messages)
        text = f"{where}. It ends when another rank sends or receives what it waits for. If none can, restart."
        parts.insert(0, (text, len(busy) < len(places)))
    parts += [(f"rank {r} still computes, {busy[r].line}: wait, or restart.", True) for r in computing]
    return "\n".join(text for text, _ in parts), all(certain for _, certain in parts)


def open_call(log: list[Collective]) -> Collective | None:
    """Return the first collective of a log that has not ended."""
    return next((c for c in log if c.state != "finished" and c.kind not in POINT_TO_POINT), None)


def disagreement(call: Collective, places: dict[int, Place], waiting: Iterable[int] = ()) -> str:
    """Return which calls ranks have made in the place of `call`, in words; "" if all are alike, as far as is known."""
    made = {r: c.agreed for r, p in places.items() for c in p.log if _place_in_order(c) == _place_in_order(call)}
    arguments = {r: f"{made[r]} with {places[r].arguments}" for r in waiting if places[r].arguments}
    kinds = alike(made | arguments) if len(alike(made)) == 1 and len(alike(arguments)) > 1 else alike(made)
    calls = ", ".join(f"{named(ranks)} called {kind}" for kind, ranks in kinds.items())
    return f"{calls}: a group's ranks must make the same calls, with the same shapes" if len(kinds) > 1 else ""


def _place_in_order(c: Collective) -> tuple:
    return c.group, c.backend, c.seq, c.kind in POINT_TO_POINT


def _words(waiting: list[int], call: Collective, places: dict[int, Place]) -> tuple[str, bool]:
    """Say of one call who waits in it, for whom, and what frees them; and whether it is certain that nothing moves."""
    if words := disagreement(call, places, waiting):
        return f"{words}. This cannot end well: restart.", True
    text = f"{named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in {call.signature}, {places[waiting[0]].line}"
    missing = [r for r in call.members if r not in places or not _has_called(places[r].log, call)]
    if not missing:
        return f"{text}. All its ranks have called it. So it is under way, or an argument differs: then restart.", False
    text = f"{text}, for {named(missing)}"
    if dead := [r for r in missing if r not in places]:
        return f"{text}, and {named(dead)} {'has' if len(dead) == 1 else 'have'} ended: restart.", True
    if busy := [r for r in missing if places[r].is_busy]:
        return f"{text}: {named(busy)} must leave another call first.", True
    return f"{text}. Pending: run the same call on {named(missing)}, and it ends.", True


def _has_called(log: list[Collective], call: Collective) -> bool:
    mine = [c for c in log if (c.group, c.backend) == (call.group, call.backend)]
    return any(c.seq >= call.seq and c.kind not in POINT_TO_POINT for c in mine)
