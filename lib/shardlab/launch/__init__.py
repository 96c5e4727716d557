"""`launch(fn, world_size)`: run a function on N real ranks, from a notebook, a script, a test, or under torchrun.

    launcher ──forkserver (torch already imported)──> rank 0 .. N-1, one process each
       │  <── lifeline ──  result, traceback, whereabouts
       │  <── output  ──   every printed line, shown as "[rank 2] ..."
       └─ a temporary file: where the ranks meet

Read in this order:

    api                         the call
    pickling                    how a function travels to the ranks
    rank_main                   what runs in each rank's process
    rank_process, job           the launcher's side: it watches pipes, processes and the clock
    flight_recorder             the collectives that a rank has called
    hang_report, rank_at_fault  the error message: which rank is at fault
    link_error_to_explanation   where the index of messages explains it
    notebook_tracebacks         cells by their numbers; an interrupt without our frames
    progress_line               the line under a cell that waits

No process is left behind, whatever goes wrong.
"""

from shardlab.launch.api import launch, local_device, warm_up
from shardlab.launch.rank_at_fault import LaunchError

__all__ = ["LaunchError", "launch", "local_device", "warm_up"]
