"""Calls of the kernel that a box refuses: they reach what no namespace divides, or hold memory that nobody counts.

Keys belong to a user, so a submission could read the grader's, and leave one for the next submission. Messages of
System V and of POSIX, shared memory of System V that no process has mapped, pages given to a pipe by vmsplice, secret
memory and io_uring's buffers are in no process's count. What inotify may watch, all boxes of a user share. The rest is
what programs use to take a kernel apart. Each fails with EPERM. Source: Linux, seccomp(2) and its numbers of calls;
bubblewrap's option --seccomp.
"""

import platform
import struct
import sys

_NUMBERS = {  # of the same calls on each machine
    "x86_64": {
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "msgget": 68,
        "msgsnd": 69,
        "mq_open": 240,
        "shmget": 29,
        "vmsplice": 278,
        "memfd_secret": 447,
        "io_uring_setup": 425,
        "inotify_init": 253,
        "inotify_init1": 294,
        "fanotify_init": 300,
        "bpf": 321,
        "userfaultfd": 323,
        "perf_event_open": 298,
    },
    "aarch64": {
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "msgget": 186,
        "msgsnd": 189,
        "mq_open": 180,
        "shmget": 194,
        "vmsplice": 75,
        "memfd_secret": 447,
        "io_uring_setup": 425,
        "inotify_init1": 26,
        "fanotify_init": 262,
        "bpf": 280,
        "userfaultfd": 282,
        "perf_event_open": 241,
    },
}
_KINDS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_...: a program may use another kind of calls
_X32 = 0x40000000  # from here on: x86_64's calls with short pointers
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
_NUMBER, _KIND = 0, 4  # places in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
_FD = 9
_OPENS_IT = (  # then becomes the command that follows
    "import os, sys; fd = os.memfd_create('calls'); os.write(fd, bytes.fromhex(sys.argv[1])); os.lseek(fd, 0, 0);"
    f"os.dup2(fd, {_FD}); os.execvp(sys.argv[2], sys.argv[2:])"
)


def options() -> list[str]:
    """Return bubblewrap's options; none on a machine whose calls have other numbers."""
    return ["--seccomp", str(_FD)] if platform.machine() in _NUMBERS else []


def opened(command: list[str]) -> list[str]:
    """Return a command that opens the filter for the `options` in `command`, and becomes it."""
    machine = platform.machine()
    return [sys.executable, "-ISc", _OPENS_IT, _filter(machine).hex(), *command] if machine in _NUMBERS else command


def _filter(machine: str) -> bytes:
    """Return a program of classic BPF: allow all calls of this machine's own kind but those above."""
    tests = [(_AT_LEAST, _X32), *((_EQUAL, number) for number in _NUMBERS[machine].values())]
    n = len(tests)
    lines = [(_LOAD, 0, 0, _KIND), (_EQUAL, 0, n + 2, _KINDS[machine]), (_LOAD, 0, 0, _NUMBER)]
    lines += [(test, n - i, 0, number) for i, (test, number) in enumerate(tests)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
