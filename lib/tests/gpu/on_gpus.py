"""Run a test's function on ranks that have a stand-in GPU each."""

from deadlines import deadline_s
from nccl_over_gloo import StandInGpus

from shardlab import launch


def on_gpus(fn, n_ranks: int, *args, creation_s: float = 0.0) -> list:
    """Return what `fn(*args)` returns on each rank. `fn` must import what it needs from this folder itself."""
    network = StandInGpus(creation_s)
    return launch(fn, n_ranks, *args, device="cpu", network=network, timeout_s=deadline_s(90), stream=False)


def train(names: list[str], until_reported: bool = False, without=None) -> dict[str, tuple[list[float], list[str]]]:
    """On a rank: run these programs; `without` is a wait that is left out."""
    import waits

    if without is not None:
        waits.leave_out(without)
    import gpu_programs

    return gpu_programs.run(names, until_reported)


def lines_run(names: list[str], wanted: list[tuple[str, int]]) -> set[tuple[str, int]]:
    """On a rank: run these programs, and return which of the lines (file below lib/, line) the main thread runs."""
    import sys

    files, seen = {file for file, _ in wanted}, set()

    def trace(frame, event, argument):
        file = next((f for f in files if frame.f_code.co_filename.endswith("/" + f)), None)
        if file is None:
            return None
        seen.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    train(names)
    sys.settrace(None)
    return seen & set(wanted)
