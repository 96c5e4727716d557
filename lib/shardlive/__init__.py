"""Ranks that stay between the cells of a notebook: run a cell on all or some, look into each, see who waits for whom.

    with Ranks(4) as r:
        r.run("x = torch.ones(2) * rank; dist.all_reduce(x); x")  # [every rank] tensor [2] float32: 6, 6
        r.pull("x.sum().item()")                                  # [12.0, 12.0, 12.0, 12.0]

In a notebook, `%load_ext shardlab`, `%ranks start 4`, and then `%%ranks` or `%%ranks 0,2-3` above a cell.

Read in this order:

    session     `Ranks`: start ranks, send a cell, wait, show, raise
    live_job    the processes, and what they have answered
    rank_side   what a rank does with a cell
    waiting     who waits for whom, in words
    show        what is printed, equal lines once
    magics      the notebook's commands
"""

from shardlive.magics import load_ipython_extension
from shardlive.session import RankError, Ranks

__all__ = ["RankError", "Ranks", "load_ipython_extension"]
