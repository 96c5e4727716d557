"""`launch(fn, world_size)`: run a function on N real ranks, from a notebook, a script, a test, or under torchrun.

    launcher ──forkserver (torch already imported)──> rank 0 .. N-1, one process each
       │  <── lifeline ──  result, traceback, whereabouts
       │  <── output  ──   every printed line, shown as "[rank 2] ..."
       └─ a temporary file: where the ranks meet

Read `api` (the call), `travel` (how a function gets there), `rank` (what runs in each process), `rank_process` (the
launcher's end of it), `job` (the launcher watches pipes, processes and the clock), `blame` (who is at fault, in words).
Whatever goes wrong, no process is left behind.
"""

from shardlab.launch.api import launch, local_device, warm_up
from shardlab.launch.blame import LaunchError

__all__ = ["LaunchError", "launch", "local_device", "warm_up"]
