"""The notebook's commands for live ranks: `%ranks start 4`, then `%%ranks` above a cell."""

import getopt
import inspect
import pickle
import re
import shlex
from collections.abc import Iterable
from contextlib import contextmanager
from typing import Any

from IPython import get_ipython

from shardlab.launch.notebook_tracebacks import without_frames
from shardlive.session import Ranks, checked
from shardsim import simulated

_ranks: list[Ranks] = []  # those that the commands talk to; at most one


def load_ipython_extension(ipython) -> None:
    """Register `%ranks` and `%%ranks`, and the function `pull(expression)`; IPython calls this."""
    ipython.register_magic_function(ranks, "line_cell")
    ipython.user_ns["pull"] = pull


def ranks(line: str, cell: str | None = None) -> None:
    """Talk to ranks that stay between the cells of a notebook. First: %load_ext shardlab

    %ranks start 4           end the old ranks, start 4. Options: --device cpu, --network "1 GB/s, 50 us" (simulated)
    %%ranks                  first line of a cell: run the cell on every rank
    %%ranks 0,2-3            run it on these ranks. Options: --wire shows what was sent, --memory what each rank holds
    %ranks                   say who waits for whom, and who has ended
    pull("x.sum().item()")   return a value from each rank, also from one that waits
    %ranks push f x          give the ranks your function f and your value x
    %ranks debug 2 x.shape   look into the function that failed on rank 2. Without an expression: its names now
    %ranks restart           end all ranks and start new ones. Says what is lost
    %ranks stop              end the ranks, and fail if one still computes or waits
    %ranks help              show this page

    Names. Each rank has torch, dist, rank, world_size and device. The names that a cell makes stay until a restart.
    Output. The value of a cell's last line is shown, once if all ranks have the same. A semicolon at the end hides it.
      Of more than 1,000 printed lines you see the first 1,000 and the last 100. A file has all of them.
      A tensor is shown by its first numbers, and a long value is cut: pull("x") returns all of it.
    Code. A rank runs plain Python: no % and no !. In place of await, asyncio.run(f()). It has no keyboard for input(),
      and no screen: pull("x"), and draw x in a cell of the notebook.
    Pending. If only rank 0 calls dist.all_reduce(x), it waits for the other ranks. The cell comes back and says who
      waits for whom. Run the same call on the others (make x there, too) under %%ranks 1-3: then all four have the sum.
      A call with async_op=True waits only in its wait().
      An all_reduce with op=MAX on one rank and SUM on the others is told only while a rank waits in it.
    Errors. If a cell fails on one rank, you see the rank and the line. All ranks stay, with their names. Mend the cell.
      Run it on all ranks, or, if the others wait in a call for rank 2, under %%ranks 2 alone.
      If a rank's process ends, the others keep their names. Save what you need with x = pull("x"), then %ranks restart.
      The new ranks have no names: %ranks push x gives each of them the list that you saved, and x[rank] is its part
      (None for a rank that had ended).
    Interrupt. The interrupt button ends what computes. A rank that waits for others stays where it is, and one that
      does not stop is named. Other ranks can run cells meanwhile.
    Who holds what. from shardcourse.who import who; who("layer.weight") draws the part of a tensor that each rank has
      now. Try it: under %%ranks, from torch.distributed.fsdp import fully_shard and
      layer = fully_shard(torch.nn.Linear(8, 8)). Draw it. Then run layer.unshard() under %%ranks, and draw it again:
      each rank has gathered the whole weight, beside its own part. layer.reshard() frees what was gathered.
    """
    with _in_words():
        _command(line) if cell is None else _run(line, cell)


def pull(expression: str, ranks: Iterable[int] | int | None = None) -> list[Any]:
    """Return the value of an expression on each rank."""
    with _in_words():
        return live_ranks().pull(expression, [ranks] if isinstance(ranks, int) else ranks)


HELP = inspect.getdoc(ranks)


@contextmanager
def _in_words():
    """Show an error without the frames of this package."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, pickle.PicklingError, getopt.GetoptError) as error:
        raise without_frames(error, str(error))  # noqa: B904  it is the same error


def live_ranks() -> Ranks:
    """Return the ranks that `%ranks` talks to. Raises RuntimeError if none have been started."""
    if not (_ranks and _ranks[0].end.alive):
        raise RuntimeError("no ranks have been started: %load_ext shardlab, then %ranks start 4")
    return _ranks[0]


def _run(line: str, cell: str) -> None:
    words, options = _split(line, "wire", "memory")
    # The cell is named, and its lines are counted, as in the notebook: %%ranks is the first one.
    cell, name = f"\n{cell}", f"In[{len(get_ipython().user_ns['In']) - 1}]"
    live_ranks().run(cell, chosen_ranks(words), name=name, **dict.fromkeys(options, True))


def _command(line: str) -> None:
    verb, rest = (*line.split(maxsplit=1), "", "")[:2]
    match verb, *rest.split(maxsplit=1):
        case ["start", *_]:
            _start(rest)
        case [""]:
            print("\n".join(filter(None, [live_ranks().gone, live_ranks().pending])) or "no rank waits")
        case ["help"]:
            print(HELP)
        case ["push", _, *_]:
            pushed, names = rest.replace(",", " ").split(), get_ipython().user_ns
            if unknown := [name for name in pushed if name not in names]:
                raise ValueError(f"%ranks push {rest}: the notebook has no {unknown[0]}")
            live_ranks().push(**{name: names[name] for name in pushed})
        case ["debug", rank, *expression] if rank.isdigit():
            print(live_ranks().debug(int(rank), *expression) or "the function that failed has no names of its own")
        case ["restart"]:
            print(live_ranks().restart() or "started again: no names were lost")
        case ["stop"]:
            live_ranks().stop()
        case _:
            raise ValueError(f"%ranks {line} is no command, or not a whole one.\n{HELP.split('Names.')[0].rstrip()}")


def _start(line: str) -> None:
    number, options = _split(line, "network=", "device=")
    world_size = int(number) if number.isdigit() else number or 4
    network = simulated(options["network"]) if "network" in options else None
    device = options.get("device", "cpu" if network else None)
    checked(world_size, device, network)  # before anything is lost
    # The old ones first: a GPU's memory may not hold both.
    if _ranks and _ranks[0].end.alive and (lost := _ranks[0].give_up()):
        print(f"the ranks that were there are ended.\n{lost}")
    _ranks[:] = [Ranks(world_size, device=device, network=network)]
    print(f"{world_size} ranks are there")


def _split(line: str, *options: str) -> tuple[str, dict[str, str]]:
    """Return the words of a command without its options, and the options. GetoptError if one is not known."""
    given, words = getopt.gnu_getopt(shlex.split(line), "", options)
    return " ".join(words), {name.lstrip("-"): value for name, value in given}


def chosen_ranks(text: str) -> list[int] | None:
    """Return the ranks of "0,2-3", [0, 2, 3]; None, for all, of "". Raises ValueError if it is something else."""
    matches = [re.fullmatch(r"(\d+)(?:-(\d+))?", part) for part in text.replace(",", " ").split()]
    spans = [range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches if m]
    if len(spans) < len(matches) or not all(spans):
        raise ValueError(f"%%ranks {text}: ranks are numbers, such as 0,2-3")
    return [r for span in spans for r in span] or None
