"""The check of lesson 10b's exercise: a function that reads NCCL's log and says what is wrong."""

from collections.abc import Callable

_GOOD = """\
{host}:4101:4133 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
{host}:4101:4133 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
{host}:4101:4133 [0] NCCL INFO Using network IB
"""
_A, _B = (_GOOD.format(host=host) for host in ("node-a", "node-b"))
_SOCKET = "node-b:4101:4133 [0] NCCL INFO Using network Socket\n"
LOGS = {  # what it is: (the log, words that the faults must have)
    "two healthy nodes": (_A + _B, []),
    "node-b uses TCP": (_A + _B.replace("Using network IB", "Using network Socket"), [("node-b", "Socket")]),
    "node-a meets over docker0": (_A.replace("eth0", "docker0") + _B, [("node-a", "docker0")]),
    "node-a meets over lo": (_A.replace("eth0", "lo") + _B, [("node-a", "lo")]),
    "node-c never speaks": (_A + _B, [("node-c",)]),
    "two faults": (_A.replace("eth0", "lo") + _B + _SOCKET, [("node-a", "lo"), ("node-b", "Socket")]),
}


def problems(faults: Callable[[str, list[str]], list[str]]) -> list[str]:
    """Return what is wrong with a reader's `faults(log, hosts)`, in words; an empty list if nothing is."""
    return [f"{name}: {p}" for name, (log, words) in LOGS.items() if (p := _problem(faults, name, log, words))]


def _problem(faults: Callable, name: str, log: str, words: list[tuple[str, ...]]) -> str:
    hosts = ["node-a", "node-b", *(["node-c"] if "node-c" in name else [])]
    found = faults(log, hosts)
    if not isinstance(found, list):
        return f"it should return a list of sentences, not {found!r:.40}"
    if len(found) != len(words):
        return f"there are {len(words)} faults, and it finds {len(found)}: {found}"
    missed = [parts for parts in words if not any(all(p in sentence for p in parts) for sentence in found)]
    return f"no sentence has the words {' and '.join(missed[0])}: {found}" if missed else ""
