"""Show a cell's output: lines as they are printed, equal ones once, and values rank by rank."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardlab.launch.rank_names import named
from shardlive.live_job import LiveRank

_TOGETHER_S = 0.5  # a line waits so long for the other ranks' equal lines


class Printed:
    """The lines that ranks have printed and nobody has seen yet."""

    def __init__(self, ranks: list[LiveRank], chosen: list[LiveRank], show: Callable[[str], Any]) -> None:
        self.ranks, self.chosen, self.show = ranks, chosen, show

    def show_common(self) -> None:
        """Show lines that all ranks of the cell have printed, once; then those that have waited long enough."""
        while all(r.lines for r in self.chosen) and len({r.lines[0][1] for r in self.chosen}) == 1:
            self._show(self.chosen, [r.lines.pop(0)[1] for r in self.chosen][0])
        for r in self.ranks:
            while r.lines and r.lines[0][0] < time.monotonic() - _TOGETHER_S:
                self._show([r], r.lines.pop(0)[1])

    def show_rest(self) -> None:
        """Show all lines that are left; ranks with the same lines together."""
        self.show_common()
        same: dict[tuple[str, ...], list[LiveRank]] = {}
        for r in (r for r in self.ranks if r.lines):
            same.setdefault(tuple(text for _, text in r.lines), []).append(r)
            r.lines = []
        for lines, ranks in same.items():
            for line in lines:
                self._show(ranks, line)

    def _show(self, ranks: list[LiveRank], line: str) -> None:
        self.show(f"{_head((r.number for r in ranks), len(self.ranks))} {line}")


def values(of_rank: dict[int, str], world_size: int) -> Iterator[str]:
    """Yield "[rank 2] text" for each rank in order, the same text once: "[every rank] text" if all ranks have it."""
    same: dict[str, list[int]] = {}
    for rank, text in sorted(of_rank.items()):
        same.setdefault(text, []).append(rank)
    heads = {text: _head(ranks, world_size) for text, ranks in same.items()}
    width = max(map(len, heads.values()), default=0)
    for text, head in heads.items():
        yield f"{head.ljust(width)} " + text.replace("\n", "\n" + " " * (width + 1))


def _head(ranks: Iterable[int], world_size: int) -> str:
    ranks = list(ranks)
    return "[every rank]" if len(ranks) == world_size > 1 else f"[{named(ranks)}]"
