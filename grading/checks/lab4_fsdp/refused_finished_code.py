"""See which finished answers a submission uses: the grader's own functions, or an engine of the library."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ENGINES = ("ddp", "fsdp", "zero", "recompute", "cpu_offload_optimizer", "bucketed_backward")  # of shardlab


@contextmanager
def graders_functions() -> Iterator[set[str]]:
    """Collect the grader's functions that the block calls."""
    found: set[str] = set()

    def note(frame, event, _):
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if event == "call" and name.startswith("grading.") and name != __name__ and not function.startswith("<"):
            found.add(f"{name}.{function}")

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextmanager
def finished_answers() -> Iterator[set[str]]:
    """Collect these, and the library's engines that are imported when the block ends."""
    with graders_functions() as found:
        yield found
    found |= {name for name in sys.modules if name.startswith("shardlab.") and name.split(".")[1] in ENGINES}


def in_words(replies: list[dict]) -> str:
    """Say what is used that was finished; empty if nothing is."""
    found = sorted({name for r in replies for name in r["finished"]})
    return f"it uses {found[0]}, which is finished: write this yourself, with what torch has." if found else ""
