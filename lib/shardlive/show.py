"""Show a cell's output: lines as they are printed, equal ones once, and values rank by rank."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardlab.launch.hang_report import named
from shardlab.launch.rank_main import cut
from shardlive.live_job import LiveJob, LiveRank

_TOGETHER_S = 0.5  # a line waits so long for the other ranks' equal lines
_FIRST, _LAST = 1_000, 100  # printed lines of a cell: more would be too much for a browser


class Printed:
    """The lines that ranks print, shown as they come. Of too many, `print` gets some, a file has all."""

    def __init__(self, job: LiveJob, chosen: list[LiveRank], show: Callable[[str], Any]) -> None:
        self.job, self.chosen, self.show, self.most = job, chosen, show, _FIRST if show is print else sys.maxsize
        self.cut = cut if show is print else str
        self.lines, self.file = [], Path(job.files.name, f"cell_{chosen[0].cell}.txt")

    def show_common(self) -> None:
        """Show lines that all ranks of the cell have printed, once; then those that have waited long enough."""
        while all(r.lines for r in self.chosen) and len({r.lines[0][1] for r in self.chosen}) == 1:
            self._show([r.number for r in self.chosen], [r.lines.popleft()[1] for r in self.chosen][0])
        for r in self.job.ranks:
            while r.lines and r.lines[0][0] < time.monotonic() - _TOGETHER_S:
                self._show([r.number], r.lines.popleft()[1])

    def show_rest(self) -> None:
        """Show all lines that are left; ranks with the same lines together. Of too many, show the last ones."""
        self.show_common()
        for lines, ranks in alike({r.number: tuple(text for _, text in r.lines) for r in self.job.ranks}).items():
            for line in lines:
                self._show(ranks, line)
        for r in self.job.ranks:
            r.lines.clear()
        left = self.lines[self.most :]
        out = max(0, len(left) - _LAST) + sum(self.cut(line) != line for line in self.lines)
        if out:
            self.file.write_text("\n".join(self.lines), encoding="utf-8", errors="replace")
            self.show(f"... {out:,} lines are left out or cut here. Until the ranks end, all are in {self.file}")
        for line in left[-_LAST:]:
            self.show(self.cut(line))

    def _show(self, ranks: list[int], line: str) -> None:
        self.lines.append(f"{_head(ranks, len(self.job.ranks))} {line}")
        if len(self.lines) <= self.most:
            self.show(self.cut(self.lines[-1]))
        elif len(self.lines) == self.most + 1:
            self.show("... more lines: the last ones are shown when the cell ends")


def values(of_rank: dict[int, str], world_size: int) -> Iterator[str]:
    """Yield "[rank 2] text" for each rank in order, the same text once: "[every rank] text" if all ranks have it."""
    heads = {text: _head(ranks, world_size) for text, ranks in alike(of_rank).items()}
    width = max(map(len, heads.values()), default=0)
    for text, head in heads.items():
        yield f"{head.ljust(width)} " + text.replace("\n", "\n" + " " * (width + 1))


def alike(of_rank: dict[int, Any]) -> dict[Any, list[int]]:
    """Return the ranks that have each value, in order."""
    same: dict[Any, list[int]] = {}
    for rank, value in sorted(of_rank.items()):
        same.setdefault(value, []).append(rank)
    return same


def _head(ranks: list[int], world_size: int) -> str:
    return "[every rank]" if len(ranks) == world_size > 1 else f"[{named(ranks)}]"
