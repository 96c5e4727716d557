"""The notebook's commands for live ranks: `%ranks start 4`, then `%%ranks` above a cell."""

import shlex
from typing import Any

from shardlive.session import Ranks
from shardsim import simulated

HELP = """%ranks start 4 [--network "2x2 nodes, 1 GB/s inside, 100 MB/s between"] [--device cpu]
%%ranks [0,2-3] [--wire] [--memory]   run the cell on all ranks, or on some
%ranks                                who waits for whom
%ranks push f x                       give the ranks these names of the notebook
%ranks debug 2 [expression]           look into the cell that failed on rank 2
%ranks restart | stop"""
_WITH_A_VALUE = ("--network", "--device")


_loaded: list["Commands"] = []


def load_ipython_extension(ipython) -> None:
    """Register `%ranks` and `%%ranks`, and the function `pull(expression)`; IPython calls this."""
    commands = Commands(ipython.user_ns)
    _loaded[:] = [commands]
    ipython.register_magic_function(commands.ranks, "line_cell", "ranks")
    ipython.user_ns["pull"] = commands.pull


def live_ranks() -> Ranks:
    """Return the ranks that `%ranks` talks to. Raises RuntimeError if none have been started."""
    if not _loaded:
        raise RuntimeError("no ranks have been started: %load_ext shardlab, then %ranks start 4")
    return _loaded[0].there


class Commands:
    """The commands, and the ranks that they talk to."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.live = names, None

    def ranks(self, line: str, cell: str | None = None) -> None:
        """Talk to ranks that stay. The commands: see HELP."""
        words, options = _split(line)
        if cell is not None:
            chosen = chosen_ranks(" ".join(words))
            self.there.run(cell, chosen, **dict.fromkeys((o.removeprefix("--") for o in options), True))
            return
        match words:
            case ["start", *n] if not n or n[0].isdigit():
                if self.live is not None:
                    self.live.end()
                network = simulated(options["--network"]) if "--network" in options else None
                device = options.get("--device", "cpu" if network else None)
                self.live = Ranks(int(n[0]) if n else 4, device=device, network=network)
                print(f"{self.live.world_size} ranks are there")
            case []:
                print(self.there.pending or "no rank waits")
            case ["push", *names]:
                self.there.push(**{name: self.names[name] for name in names})
            case ["debug", rank, *expression] if rank.isdigit():
                print(self.there.debug(int(rank), " ".join(expression)))
            case ["restart"]:
                print(self.there.restart() or "started again: no names were lost")
            case ["stop"]:
                live, self.live = self.there, None
                live.stop()
            case _:
                raise ValueError(f"%ranks {line} is no command. There are:\n{HELP}")

    def pull(self, expression: str, ranks=None) -> list[Any]:
        """Return the value of an expression on each rank."""
        return self.there.pull(expression, ranks)

    @property
    def there(self) -> Ranks:
        """The ranks that have been started; RuntimeError if none have been."""
        if self.live is None:
            raise RuntimeError("no ranks have been started: %ranks start 4")
        return self.live


def _split(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command and its options. ValueError if an option is not known."""
    words, options = shlex.split(line), {}
    for name in [word for word in words if word.startswith("--")]:
        i = words.index(name)
        options[name] = " ".join(words[i + 1 : i + 2]) if name in _WITH_A_VALUE else ""
        del words[i : i + 1 + (name in _WITH_A_VALUE)]
        if name not in (*_WITH_A_VALUE, "--wire", "--memory"):
            raise ValueError(f"{name} is no option. There are:\n{HELP}")
    return words, options


def chosen_ranks(text: str) -> list[int] | None:
    """Return the ranks of "0,2-3", [0, 2, 3]; None, for all, of "". Raises ValueError if it is something else."""
    try:
        spans = [[int(n) for n in part.split("-", 1)] for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"%%ranks {text}: ranks are numbers, such as 0,2-3") from None
    return [r for span in spans for r in range(span[0], span[-1] + 1)] or None
