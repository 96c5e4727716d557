"""Run what reads or shows a student's work in a child process, with limits: an odd file must not stop the grader."""

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

CPU_S, MEMORY = 60, 1 << 30  # bytes beyond what this process has already
_PATIENCE = 20  # a busy machine gives a process one second in so many
T = TypeVar("T")


class LimitError(RuntimeError):
    """The child took too much time or memory; the message says so."""


def limited(function: Callable[..., T], *arguments, cpu_s: int = CPU_S, memory: int = MEMORY) -> T:
    """Return `function(*arguments)` from a child process. Raises what it raises, or LimitError.

    The child is a fork, so that nothing is imported again; arguments need not be pickled, and the result must be.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(sender, cpu_s, memory, function, arguments), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(cpu_s * _PATIENCE):
            raise LimitError(f"it took more than {cpu_s} s")
        done, outcome = receiver.recv()
    except EOFError:
        raise LimitError(f"it took more than {cpu_s} s, or more memory than there is") from None
    finally:
        child.kill()
        child.join()
        receiver.close()
    if done:
        return outcome
    raise LimitError(f"it took more than {memory >> 20} MiB") if isinstance(outcome, MemoryError) else outcome


def _call(sender: Connection, cpu_s: int, memory: int, function: Callable, arguments: tuple) -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = True, function(*arguments)
    except Exception as error:
        outcome = False, error
    try:
        sender.send(outcome)
    except Exception as error:  # it can't be pickled
        sender.send((False, RuntimeError(f"{type(outcome[1]).__name__}: {error}")))
