"""`Ranks`: starts live ranks, sends them cells, shows what comes back, and returns when nobody computes any more."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import cloudpickle

from shardlab.launch.api import settings_of, warm_up
from shardlab.launch.hang_report import named
from shardlab.launch.link_error_to_explanation import explained
from shardlab.launch.notebook_tracebacks import name_cells, without_frames
from shardlab.launch.pickling import dumps
from shardlab.launch.rank_main import Settings
from shardlive.live_job import LiveJob, LiveRank
from shardlive.rank_side import Answer, Place
from shardlive.show import Printed, values
from shardlive.waiting import disagreement, open_call, pending

_A_DAY_S = 86_400.0  # of a collective: it may wait for a reader
_QUIET_S = 0.1  # nobody has said anything for so long: ask where the ranks are
_GRACE_S = 1.0  # for ranks to say where they are
_LONG_S = 10.0  # for ranks to say which names they have; or all have waited in the same calls for so long
_MUTE = Place(True, "and does not say where", False, [])


class RankError(RuntimeError):
    """A cell failed, or a rank ended: the text names the ranks and the line."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the ranks' frames, without the notebook's. IPython calls this."""
        return [f"RankError: {self}", *getattr(self, "__notes__", [])]


def checked(world_size: int, device: str | None, network, threads_per_rank: int = 1) -> Settings:
    """Return the settings of live ranks. Raises an error if there can be none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise RuntimeError("live ranks are started from a notebook or a script, not by a rank of another job")
    return settings_of(world_size, device, None, network, threads_per_rank, _A_DAY_S)


class Ranks(AbstractContextManager):
    """N ranks that stay between cells: `run` a cell on all or some of them, `pull` a value from each.

    Each rank has names that stay; torch, dist, rank, world_size and device are given. A collective that only some ranks
    have called is *pending*: `run` comes back, says who waits for whom, and a later `run` on the others frees it.

    `network`: a simulated one, such as `shardsim.simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between")`. Use it in a
    `with`, or call `stop()`: no rank is left. The ranks also end with the process that made them.
    """

    def __init__(self, world_size: int, *, device: str | None = None, network=None, threads_per_rank: int = 1) -> None:
        self.world_size, self._settings = world_size, checked(world_size, device, network, threads_per_rank)
        self._start()

    def _start(self) -> None:
        self._job = LiveJob(self.world_size, self._settings)
        self._told, self._left = set[int](), set[int]()  # ranks whose end has been said; those left computing
        self.end = weakref.finalize(self, self._job.kill)
        atexit.register(self.end)  # before multiprocessing waits for its processes, which finalize alone may not be
        try:
            warm_up()
            # It reads its index: 0.15 s. No daemon: Python ends after it.
            threading.Thread(target=explained, args=(RuntimeError(),)).start()
            self._job.start()
        except BaseException:
            self.end()
            raise

    def run(self, source: str, ranks: Iterable[int] | None = None, *, wire=False, memory=False, show=print, name=""):
        """Run a cell on `ranks` (None: on all), and show what it prints and the value of its last line.

        It returns when nobody computes any more: a rank that waits for others stays where it is. `wire` shows what the
        cell sent, too, `memory` what each rank holds. Raises RankError if a rank raises or ends, ValueError if one is
        still in an earlier cell. An interrupt reaches the ranks that compute, and becomes KeyboardInterrupt here.
        `show` gets every line. Without it, the first and the last ones are printed if there are many. `name` stands in
        tracebacks. A rank that an interrupt did not end is left behind: later cells of other ranks do not wait for it.
        """
        chosen = self._there(ranks)
        if busy := [r.number for r in chosen if r.is_busy]:
            raise ValueError(f"{named(busy)} did not end an earlier cell. {self.pending}")
        self._left &= {r.number for r in self._job.ranks if r.is_busy}
        self._job.begin(chosen, name, source, frozenset(["wire"] * wire + ["memory"] * memory))
        printed, interrupt = Printed(self._job, chosen, show), None
        try:
            self._wait(printed, show)
        except KeyboardInterrupt as error:
            interrupt = error
            self._interrupt()
        answers = self._job.ended()
        printed.show_rest()
        shown = values({n: a.shown for n, a in answers.items() if a.shown}, self.world_size)
        places = self._places()
        self._left = {n for n, place in places.items() if place.is_busy and not place.waits}
        for words in filter(None, [*shown, pending(places, self._left)[0]]):
            show(words)
        if interrupt:
            ended = [n for n, a in answers.items() if a.error.startswith("KeyboardInterrupt")]
            raise without_frames(interrupt, f"interrupted: {named(ended) if ended else 'no rank has ended its cell'}")
        # The ranks, not the words: a rank's exit code may become known later.
        told, self._told = self._told, {r.number for r in self._job.ranks if not r.is_there}
        self._raise_errors(answers, self.gone if told != self._told else "")

    def pull(self, expression: str, ranks: Iterable[int] | None = None) -> list[Any]:
        """Return the value of an expression on each rank, also on one that waits. Tensors come to the CPU.

        With `ranks` None the list has an entry for every rank: None for one that has ended.
        """
        if not isinstance(expression, str):
            raise TypeError('a rank has its own names, so an expression is text: pull("x"), not pull(x)')
        asked = range(self.world_size) if ranks is None else list(dict.fromkeys(ranks))
        answers = self._ask(ranks and asked, "pull", expression)
        return [cloudpickle.loads(answers[n].value) if n in answers else None for n in asked]

    def push(self, ranks: Iterable[int] | None = None, **names: Any) -> None:
        """Give ranks these names. Functions and classes of the notebook travel by value."""
        self._ask(ranks, "push", dumps(names))

    def debug(self, rank: int, expression: str = "") -> str:
        """Return an expression's value in the frame that failed last on a rank; without one, all names there."""
        return self._ask([rank], "debug", expression)[rank].shown

    @property
    def pending(self) -> str:
        """Return who waits for whom and who computes, in words; "" if no rank runs a cell."""
        return pending(self._places(), range(self.world_size))[0]

    @property
    def gone(self) -> str:
        """Return which ranks have ended, in words; "" if none has."""
        dead = [r for r in self._job.ranks if not r.is_there]
        if any(r.exit_code is None for r in dead):
            self._job.listen(2 * _QUIET_S)
        words = "; ".join(r.how_it_ended for r in dead)
        places = {r.number: Place(True, "", True, r.whereabouts.log) for r in dead if r.whereabouts}  # ended by gloo
        if call := next(filter(None, (open_call(place.log) for place in places.values())), None):
            places |= self._job.ask(self._job.ranks, "place", within_s=_GRACE_S)
            words = "; ".join(filter(None, [words, disagreement(call, places)]))
        others = "The others keep their names, but can't reach it. " if len(dead) < self.world_size else ""
        return words and f"{words}. {others}Restart to go on together"

    def _places(self) -> dict[int, Place]:
        """Return where the ranks are; nothing if no rank runs a cell."""
        places = self._job.ask(self._job.ranks, "place", within_s=_GRACE_S)
        there = [r for r in self._job.ranks if r.is_there]
        return {r.number: places.get(r.number, _MUTE) for r in there} if any(r.is_busy for r in there) else {}

    def restart(self) -> str:
        """End all ranks and start new ones. Return what is lost, in words."""
        lost = self.give_up()
        self._start()
        return lost

    def give_up(self) -> str:
        """End all ranks. Return what is lost, in words: names, and a call that was pending.

        A rank that does not say within a moment where it is will not say either which names it has.
        """
        places = self._job.ask(self._living(), "place", within_s=_GRACE_S)
        had = self._job.ask([self._job.ranks[n] for n in places], "pull", within_s=_LONG_S)
        lost = {n: f"lost: {', '.join(names)}" for n, a in had.items() if (names := cloudpickle.loads(a.value))}
        lost |= {r.number: "lost: all its names; it did not say which" for r in self._job.ranks if r.number not in had}
        lost |= {r.number: "had ended" for r in self._job.ranks if not r.is_there}
        given_up = ["the call that was pending is given up"] * any(place.waits for place in places.values())
        self.end()
        return "\n".join([*values(lost, self.world_size), *given_up])

    def stop(self) -> None:
        """End all ranks. Raises RankError, afterwards, if one was still in a cell or had ended."""
        left = self.end.alive and (self.gone or self.pending)
        self.end()
        if left:
            raise RankError(f"the ranks have been stopped, but not everything was over. {left}")

    def __exit__(self, kind, error, tb) -> None:
        self.end() if kind else self.stop()

    def _wait(self, printed: Printed, show: Callable) -> None:
        """Return when every cell has ended, or when what has not ended waits for ranks that do nothing.

        If all ranks wait in one call for long, that is shown: it may be slow, or it may never end.
        """
        asked, before = since, calls = time.monotonic(), ""
        while any(r.is_busy and r.number not in self._left for r in self._job.ranks):
            self._job.listen(_QUIET_S / 2)
            printed.show_common()
            if time.monotonic() - asked > _QUIET_S:
                places = self._places()
                words, certain = pending(places, self._left)
                if certain and words == before:
                    return
                asked, before = time.monotonic(), words
                if calls != (now_in := f"{[p.log[-1:] for p in places.values()]}{words}"):
                    since, calls = asked, now_in
                elif asked - since > _LONG_S and words:
                    show(f"{words} (Interrupt ends the waiting here.)")
                    since = float("inf")

    def _interrupt(self) -> None:
        """Interrupt what computes, and wait a moment until it has ended."""
        end = time.monotonic() + _GRACE_S
        for r in self._job.ranks:
            r.order("interrupt", 0)
        while (places := self._places()) and not pending(places, self._left)[0] and time.monotonic() < end:
            self._job.listen(_QUIET_S / 2)

    def _living(self) -> list[LiveRank]:
        """Return the ranks that have not ended. Raises RuntimeError if all have been stopped."""
        if not self.end.alive:
            raise RuntimeError("the ranks have been stopped: start them again")
        self._job.listen(0)
        return [r for r in self._job.ranks if r.is_there]

    def _there(self, ranks: Iterable[int] | None) -> list[LiveRank]:
        """Return the chosen ranks; all that are there, if none are named. Raises RankError if one has ended."""
        numbers = range(self.world_size) if ranks is None else list(dict.fromkeys(ranks))
        if strange := [n for n in numbers if n not in range(self.world_size)]:
            raise ValueError(f"there is no rank {strange[0]}: there are {named(range(self.world_size))}")
        there = [r for r in self._living() if r.number in numbers]
        if not there or (ranks is not None and len(there) < len(numbers)):
            raise RankError(self.gone)
        return there

    def _ask(self, ranks: Iterable[int] | None, kind: str, what: Any) -> dict[int, Answer]:
        answers = self._job.ask(self._there(ranks), kind, what)
        self._raise_errors(answers)
        return answers

    def _raise_errors(self, answers: dict[int, Answer], gone: str = "") -> None:
        """Raise RankError if a rank has ended, or the answers have errors: in lines, with the stack of the first."""
        errors = {n: a for n, a in answers.items() if a.error}
        heads = values({n: a.error for n, a in errors.items()}, self.world_size)
        stack = [f"\n{a.traceback.rstrip()}" for a in errors.values() if a.traceback][:1]
        if words := "\n".join(filter(None, [gone, *heads, *stack])):
            raise explained(RankError(name_cells(words)))
