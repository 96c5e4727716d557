"""Reference code for sharded data-parallel training, small enough to read.

Read in this order:

    model, tier       the model that is trained, and its size on this machine; `text_batches`: its data
    launch            run a function on N real ranks; no process is left when the call ends
    point_to_point_collectives  an all_reduce and an all_gather made of messages, and what each costs
    ddp               every rank holds the whole model; gradients are averaged in buckets (`bucketed_backward`)
    zero              each rank keeps 1/N of the optimizer states (stage 1), and of the gradients (stage 2)
    fsdp              1/N of the parameters, too (stage 3)
    precision         16 bits: master weights, loss scaling, stochastic rounding
    recompute         activation checkpointing: less memory for more computation
    cpu_offload_optimizer      optimizer states in host memory
    state             checkpoints: saved by one strategy on N ranks, loaded by another on M
    measure           bytes held, bytes sent, seconds; proof that a program shards

Each engine has the signature of PyTorch's engine, so you can swap the import. The packages beside this one import it;
it imports none of them: `shardtrace` (timelines of ranks), `shardsim` (a cluster's network under real ranks),
`shardlive` (ranks that stay between the cells of a notebook), `shardplan` (will a job fit, and how fast will it be),
`shardnext` (engines beyond the core), `shardbench`, and `shardcourse` (figures).
"""

try:
    import fcntl  # noqa: F401
except ImportError as error:
    raise ImportError(
        "shardlab runs on Linux and macOS. Windows itself can't fork the processes that ranks are: install WSL2 "
        "(in a terminal: wsl --install), open Ubuntu, and set shardlab up there. NVIDIA's GPUs work in it."
    ) from error

import importlib

from shardlab.launch import LaunchError, launch, local_device, warm_up

__version__ = "0.2.0"
__all__ = ["LaunchError", "launch", "local_device", "warm_up"]


def load_ipython_extension(ipython) -> None:
    """Load the notebook's commands for live ranks: `%load_ext shardlab` is short for `%load_ext shardlive`."""
    importlib.import_module("shardlive").load_ipython_extension(ipython)
