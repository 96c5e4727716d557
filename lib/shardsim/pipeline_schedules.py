"""Pipeline schedules by arithmetic: each rank works through its list of actions, each action as soon as possible.

Vocabulary. The model is cut into *pieces*, in the order of forward. Rank r of p has piece r or, interleaved, the pieces
r, r + p, r + 2p and so on. A batch is cut into m *micro-batches*. An *action* is the forward or the backward of one
piece with one micro-batch. A *schedule* is each rank's list of actions, in order. It leaves the times open: a forward
needs the forward of the previous piece, a backward needs the backward of the next piece.

Source: Huang et al. 2019, "GPipe", section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training",
section 2.2, for 1F1B and its interleaved form.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shardtrace.timeline import Span, Timeline


class Action(NamedTuple):
    kind: str  # "forward" or "backward"
    piece: int
    micro_batch: int


def gpipe(rank: int, p: int, m: int) -> list[Action]:
    """Return all forwards, then all backwards."""
    return [Action(kind, rank, i) for kind in ("forward", "backward") for i in range(m)]


def one_f_one_b(rank: int, p: int, m: int) -> list[Action]:
    """Return one forward for each later rank, so that it has work; then a forward and a backward in turns."""
    forwards, backwards = ([Action(kind, rank, i) for i in range(m)] for kind in ("forward", "backward"))
    return take_turns(forwards, backwards, ahead=p - 1 - rank)


def interleaved(rank: int, p: int, m: int, v: int) -> list[Action]:
    """Return 1F1B with v pieces a rank: p micro-batches go through the first of them, then through the next.

    Raises ValueError unless p divides m.
    """
    if m % p:
        raise ValueError(f"{m} micro-batches don't come in groups of {p}, one for each rank")
    turns = [(i // p % v, i // (p * v) * p + i % p) for i in range(m * v)]
    forwards = [Action("forward", rank + turn * p, i) for turn, i in turns]
    backwards = [Action("backward", rank + (v - 1 - turn) * p, i) for turn, i in turns]
    return take_turns(forwards, backwards, ahead=2 * (p - 1 - rank) + (v - 1) * p)


def take_turns(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """Return `ahead` forwards, then one forward and one backward until the forwards end, then the other backwards."""
    ahead = min(ahead, len(forwards))
    pairs = zip(forwards[ahead:], backwards, strict=False)
    in_turns = [action for pair in pairs for action in pair]
    return [*forwards[:ahead], *in_turns, *backwards[len(forwards) - ahead :]]


def in_flight(actions: Sequence[Action]) -> int:
    """Return the most micro-batches, or pieces of them, that a rank keeps for their backward at once."""
    most = now = 0
    for action in actions:
        now += 1 if action.kind == "forward" else -1
        most = max(most, now)
    return most


def pipeline_timelines(schedule: Sequence[Sequence[Action]], forward_s: float, backward_s: float) -> list[Timeline]:
    """Return each rank's timeline if messages take no time. The seconds are for one piece and one micro-batch.

    Raises ValueError if ranks wait for each other for ever.
    """
    seconds = {"forward": forward_s, "backward": backward_s}
    left, spans = [list(actions) for actions in schedule], [[] for _ in schedule]
    last = max(action.piece for actions in schedule for action in actions)
    ended_s: dict[Action, float] = {}
    while any(left):
        began = len(ended_s)
        for actions, mine in zip(left, spans, strict=True):
            while actions and (ready_s := _ready_s(actions[0], ended_s, last)) is not None:
                action = actions.pop(0)
                start_s = max(ready_s, mine[-1].end_s if mine else 0.0)
                ended_s[action] = start_s + seconds[action.kind]
                mine.append(Span("compute", action.kind, start_s, ended_s[action], str(action.micro_batch)))
        if len(ended_s) == began:
            raise ValueError(f"ranks wait for ever: next are {[actions[0] for actions in left if actions]}")
    return [Timeline(rank, tuple(mine)) for rank, mine in enumerate(spans)]


def _ready_s(action: Action, ended_s: dict[Action, float], last: int) -> float | None:
    """Return when the action's input is there; None if that has no time yet."""
    kind, piece, i = action
    if kind == "forward":
        return ended_s.get(Action(kind, piece - 1, i)) if piece else 0.0
    return ended_s.get(Action(kind, piece + 1, i) if piece < last else Action("forward", piece, i))


def idle_share(timelines: Sequence[Timeline]) -> float:
    """Share of all ranks' time, from the first start to the last end, in which they compute nothing: the bubble."""
    duration_s = max(t.end_s for t in timelines) - min(t.start_s for t in timelines)
    return 1 - sum(t.compute_s for t in timelines) / (duration_s * len(timelines))
