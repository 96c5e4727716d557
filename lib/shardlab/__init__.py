"""shardlab: reference code for sharded data-parallel training, small enough to read.

Reading order: `model` and `data` (what is trained), `launch` (N real ranks), `parallel` (how they share the work),
`measure` (what it cost), `simulate` (what it would cost elsewhere), `show` and `bench` (pictures and tables of it).
`launch` and `measure` know of `simulate` only so that ranks can run on its network; `tier` says how large a run fits
this machine.
"""

from shardlab.launch import LaunchError, launch, local_device, warm_up

__version__ = "0.1.0"
__all__ = ["LaunchError", "launch", "local_device", "warm_up"]
