"""The words of who waits for whom, from places and flight records that were made up."""

import pytest

from shardlab.launch.flight_recorder import Collective
from shardlive.rank_side import Place
from shardlive.waiting import pending

IDLE = Place(False, "", False, [])
COMPUTES = Place(True, "line 1: x @ x", False, [])
SENDS = Place(True, "line 1: dist.send(x, 1)", True, [])


def call(seq: int = 1, kind: str = "all_reduce", n: int = 3, state: str = "issued", **options) -> Collective:
    options = {"members": (0, 1, 2), "group": "0"} | options
    return Collective(seq, options.pop("group"), kind, 4 * n, 4 * n, "Float", ((n,),), 0.0, "", state, **options)


def waits(*calls: Collective, arguments: str = "") -> Place:
    return Place(True, "line 2: call()", True, list(calls), arguments)


def did(*calls: Collective) -> Place:
    return Place(False, "", False, list(calls))


FREE = "Pending: run the same call on"
IN = "waits in all_reduce Float[3], line 2: call(), for"
CASES = {
    "nobody": ({0: IDLE, 1: IDLE, 2: IDLE}, ""),
    "one of three": ({0: waits(call()), 1: IDLE, 2: IDLE}, f"rank 0 {IN} ranks 1, 2. {FREE} ranks 1, 2, and it ends."),
    "one computes": ({0: waits(call()), 1: COMPUTES, 2: IDLE}, ""),
    "one has called it and gone on": (
        {0: waits(call()), 1: did(call()), 2: IDLE},
        f"rank 0 {IN} rank 2. {FREE} rank 2, and it ends.",
    ),
    "earlier calls do not count": (
        {0: waits(call(1, state="finished"), call(2)), 1: did(call(1, state="finished")), 2: did(call(2))},
        f"rank 0 {IN} rank 1. {FREE} rank 1, and it ends.",
    ),
    "calls of another group do not count": (
        {0: waits(call()), 1: did(call(5, group="1")), 2: did(call())},
        f"rank 0 {IN} rank 1. {FREE} rank 1, and it ends.",
    ),
    "another call": (
        {0: waits(call()), 1: waits(call(kind="broadcast")), 2: IDLE},
        "rank 0 called all_reduce Float[3], rank 1 called broadcast Float[3]: a group's ranks must make the same "
        "calls, with the same shapes. This cannot end well: restart.",
    ),
    "other shapes": (
        {0: waits(call()), 1: waits(call()), 2: waits(call(n=4))},
        "ranks 0, 1 called all_reduce Float[3], rank 2 called all_reduce Float[4]: a group's ranks must make the same "
        "calls, with the same shapes. This cannot end well: restart.",
    ),
    "another shape that one has left already": (
        {0: waits(call(n=4)), 1: waits(call(n=4)), 2: did(call(state="finished"))},
        "ranks 0, 1 called all_reduce Float[4], rank 2 called all_reduce Float[3]: a group's ranks must make the same "
        "calls, with the same shapes. This cannot end well: restart.",
    ),
    "other arguments": (
        {0: waits(call(), arguments="op=SUM"), 1: waits(call(), arguments="op=MAX"), 2: IDLE},
        "rank 0 called all_reduce Float[3] with op=SUM, rank 1 called all_reduce Float[3] with op=MAX: a group's ranks "
        "must make the same calls, with the same shapes. This cannot end well: restart.",
    ),
    "arguments that are not known": (
        {0: waits(call(), arguments="op=SUM"), 1: waits(call()), 2: IDLE},
        f"ranks 0, 1 wait in all_reduce Float[3], line 2: call(), for rank 2. {FREE} rank 2, and it ends.",
    ),
    "one has ended": ({0: waits(call()), 1: IDLE}, f"rank 0 {IN} ranks 1, 2, and rank 2 has ended: restart."),
    "two have ended": ({0: waits(call())}, f"rank 0 {IN} ranks 1, 2, and ranks 1, 2 have ended: restart."),
    "two groups": (
        {0: waits(call()), 1: waits(call(group="1", members=(0, 1))), 2: IDLE},
        f"rank 0 {IN} ranks 1, 2: rank 1 must leave another call first.\n"
        f"rank 1 {IN} rank 0: rank 0 must leave another call first.",
    ),
    "a message": (
        {0: SENDS, 1: IDLE, 2: IDLE},
        "rank 0 waits at line 1: dist.send(x, 1). It ends when another rank sends or receives what it waits for. "
        "If none can, restart.",
    ),
    "a message and a call": (
        {0: SENDS, 1: waits(call()), 2: IDLE},
        "rank 0 waits at line 1: dist.send(x, 1). It ends when another rank sends or receives what it waits for. "
        "If none can, restart.\nrank 1 waits in all_reduce Float[3], line 2: call(), for ranks 0, 2: rank 0 must leave "
        "another call first.",
    ),
    "NCCL's messages are no collectives": (
        {0: waits(call(kind="send")), 1: IDLE, 2: IDLE},
        "rank 0 waits at line 2: call(). It ends when another rank sends or receives what it waits for. If none "
        "can, restart.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_waits_for_whom(case):
    places, words = CASES[case]
    assert pending(places) == (words, words != "")


def test_a_rank_that_an_earlier_cell_left_computing_is_named_and_hinders_no_answer():
    alone = {0: IDLE, 1: COMPUTES, 2: IDLE}
    words = "rank 1 still computes, line 1: x @ x: wait, or restart."
    assert pending(alone) == pending(alone, [0, 2]) == ("", False)
    assert pending(alone, [1]) == (words, True)
    must_leave = f"rank 0 {IN} ranks 1, 2: rank 1 must leave another call first."
    assert pending({**alone, 0: waits(call())}, [1]) == (f"{must_leave}\n{words}", True)
    assert pending({**alone, 2: COMPUTES}, [1]) == ("", False)


@pytest.mark.parametrize("others", [waits(call()), did(call(2))])
def test_a_call_that_all_have_made_may_be_under_way(others):
    places = {0: waits(call()), 1: others, 2: others}
    words, certain = pending(places)
    assert "All its ranks have called it. So it is under way, or an argument" in words and not certain


def test_messages_that_all_ranks_wait_for_may_be_under_way():
    places = {0: SENDS, 1: SENDS}
    words, certain = pending(places)
    assert words.endswith("what it waits for. If none can, restart.") and not certain
