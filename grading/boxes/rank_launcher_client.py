"""A host in a box and the ranks that it starts: send orders with a deadline, and receive each rank's reply."""

import base64
from dataclasses import dataclass

from grading.boxes.sandbox import Box
from grading.boxes.sandbox.boxed_program import BoxedProgram, BoxedProgramError
from grading.boxes.sandbox.memory_and_network_counters import Seen
from shardlab.launch.rank_main import SETUP_S

_MARGIN_S = 15.0  # a host that has not answered this long after its own deadline is ended from outside


class RanksFailedError(BoxedProgramError):
    """The submission's ranks failed; `str` is the launcher's report. `timed_out`: they hung, and would hang again."""


class ReferenceFailedError(RanksFailedError):
    """The reference's ranks failed, which says nothing about the submission."""


@dataclass(frozen=True)
class Watched:
    replies: list  # one for each rank
    seen: Seen


class RankLauncher(BoxedProgram):
    """A host that takes one order at a time. If it still owes a reply when the next order comes, it is replaced."""

    most_values = 1 << 17  # in a reply; our own solutions' replies have up to 18,000, as some judges compare all pairs

    def __init__(self, *modules: str, box: Box, error: type[RanksFailedError] = RanksFailedError) -> None:
        """Start a host that can import `modules`: the lab's drills, and for the reference's ranks our answers, too."""
        super().__init__("grading.boxes.rank_launcher_in_box", *modules, box=box, error=error, imports=modules)

    def order(self, drill: str, answer: bytes | None, **setting) -> list:
        """Run a drill on fresh ranks with a pickled answer, or the reference (None); return one JSON value a rank.

        `setting` is what `begin` takes: world_size, timeout_s, device, network, and the drill's own arguments.
        """
        self.begin(drill, answer, **setting)
        return self.finish()

    def watch(self, drill: str, answer: bytes | None, **setting) -> Watched:
        """Run `order`, and measure all ranks together from outside. On a GPU nothing is measured."""
        self.begin(drill, answer, watched=True, **setting)
        with self.counters() as counters:
            replies = self.finish()
        return Watched(replies, counters.seen if setting.get("device", "cpu") == "cpu" else Seen())

    def begin(
        self,
        drill: str,
        answer: bytes | None,
        *,
        world_size: int,
        timeout_s: float,
        device: str = "cpu",
        network: str | None = None,
        watched: bool = False,
        **arguments,
    ) -> None:
        order = {
            "drill": drill,
            "answer": None if answer is None else base64.b64encode(answer).decode(),
            "world_size": world_size,
            "device": device,
            "network": network,
            "timeout_s": timeout_s,
            "watched": watched,
            "arguments": arguments,
        }
        self.send(order, timeout_s + _MARGIN_S + (0 if device == "cpu" else SETUP_S))

    def finish(self) -> list:
        reply = self.receive()
        if "error" in reply:
            raise self.error(str(reply["error"]), bool(reply.get("timed_out")), bool(reply.get("killed")))
        if not isinstance(reply.get("results"), list):
            self.fail("the reply is not readable")
        return reply["results"]
