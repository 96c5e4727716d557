"""The check of lesson 14a's exercise: choose the first strategy whose states fit. `verdict` tries a function."""

from collections.abc import Callable

Choose = Callable[..., str | None]
_CASES = {  # the job: (parameters, GPUs, GPUs of a node, GB of a GPU that states may take) -> (answer, hint)
    "1B on 4 GPUs with room for 20 GB": ((1.24e9, 4, 4, 20), "DDP", "16 bytes x 1.24 billion fit on every GPU"),
    "7B on 4 GPUs with room for 70 GB": ((6.74e9, 4, 4, 70), "ZERO_1", "DDP holds 16 bytes a parameter everywhere"),
    "8B on 8 GPUs with room for 50 GB": (
        (8.03e9, 8, 8, 50),
        "ZERO_1",
        "weights and gradients have 4 bytes, states 12 / 8",
    ),
    "13B on 8 GPUs with room for 60 GB": (
        (13.02e9, 8, 8, 60),
        "SHARD_GRAD_OP",
        "ZERO_1 keeps whole weights *and* whole gradients",
    ),
    "30B on 8 GPUs with room for 70 GB": ((30e9, 8, 8, 70), "FULL_SHARD", "SHARD_GRAD_OP holds gathered weights too"),
    "30B on 64 GPUs with room for 61 GB": (
        (30e9, 64, 8, 61),
        "hybrid",
        "SHARD_GRAD_OP does not fit, and a copy in each node does",
    ),
    "70B on 64 GPUs with room for 70 GB": (
        (70.6e9, 64, 8, 70),
        "FULL_SHARD",
        "a copy in each node divides by the GPUs of a node, not by all",
    ),
    "70B on 8 GPUs with room for 70 GB": (
        (70.6e9, 8, 8, 70),
        None,
        "nothing fits: 16 bytes x 70.6 billion over 8 GPUs",
    ),
    "30B on 4 GPUs of a node of 8, with room for 70 GB": (
        (30e9, 4, 8, 70),
        None,
        "a job on 4 GPUs of a node divides by 4",
    ),
}


def verdict(choose: Choose) -> str:
    """Say in words what is right or wrong with `choose(n_params, gpus, gpus_per_node, room_gb)`."""
    for name, (job, expected, hint) in _CASES.items():
        try:
            found = choose(*job)
        except Exception as error:  # the reader's own: it is shown, and the notebook goes on
            return f"{name}: it stops with {type(error).__name__}: {error}"
        if found != expected:
            return f"{name}: your function says {found!r}, and {expected!r} is right: {hint}."
    return f"Right: all {len(_CASES)} jobs get the first strategy that fits."
