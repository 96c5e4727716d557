"""Calls of the kernel that a box refuses: they reach what no namespace divides, or hold memory that nobody counts.

Keys belong to a user, so a submission could read the grader's, and leave one for the next submission. What inotify may
watch, all boxes of a user share. In no process's count are:

- messages of System V and of POSIX, shared memory of System V that no process has mapped, secret memory, io_uring's
  buffers
- a file of memfd_create that was sent through a socket and not yet received
- pages that a pipe or a socket was given instead of bytes, by vmsplice, splice, sendfile or SO_ZEROCOPY: of each page
  one byte is counted, and the page stays when its file or its process is gone
- what is in sockets of AF_ALG, AF_VSOCK and other families
- sockets' buffers beyond the kernel's usual size, and filters like this one, of which each thread may have its own

The rest is what programs use to take a kernel apart. Each fails with EPERM, and programs that copy files by sendfile
then do without. NVIDIA's driver needs memfd_create: without it no program can use a GPU, so a box with GPUs allows it,
and `limit_watchdog` limits how long such a box may have files on their way. Source: Linux, seccomp(2) and its numbers
of calls; bubblewrap's option --seccomp; NVIDIA/OpenShell, issue 1696 (CUDA error 304).
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
        "memfd_create": 319,
        "sendfile": 40,
        "splice": 275,
        "seccomp": 317,
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
        "memfd_create": 279,
        "sendfile": 71,
        "splice": 76,
        "seccomp": 277,
        "io_uring_setup": 425,
        "inotify_init1": 26,
        "fanotify_init": 262,
        "bpf": 280,
        "userfaultfd": 282,
        "perf_event_open": 241,
    },
}
_OF_GPUS = ("memfd_create",)  # what no program that uses a GPU can do without
_BY_ARGUMENT = {  # calls of which only some are refused
    "x86_64": {"prctl": 157, "setsockopt": 54, "socket": 41},
    "aarch64": {"prctl": 167, "setsockopt": 208, "socket": 198},
}
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK, by which libraries ask for addresses
_REFUSED_ARGUMENTS = (  # call -> its arguments, by place
    ("prctl", {0: 22}),  # PR_SET_SECCOMP
    ("setsockopt", {1: 1, 2: 7}),  # SOL_SOCKET, SO_SNDBUF
    ("setsockopt", {1: 1, 2: 8}),  # SO_RCVBUF
    ("setsockopt", {1: 1, 2: 60}),  # SO_ZEROCOPY
    *(("socket", {0: family}) for family in range(46) if family not in _FAMILIES),
)
_KINDS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_...: a program may use another kind of calls
_X32 = 0x40000000  # from here on: x86_64's calls with short pointers
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
_NUMBER, _KIND, _ARGUMENTS = 0, 4, 16  # places in struct seccomp_data; each argument takes 8 bytes
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
_FD = 9
_OPENS_IT = (  # then becomes the command that follows
    "import os, sys; fd = os.memfd_create('calls'); os.write(fd, bytes.fromhex(sys.argv[1])); os.lseek(fd, 0, 0);"
    f"os.dup2(fd, {_FD}); os.execvp(sys.argv[2], sys.argv[2:])"
)


def options() -> list[str]:
    """Return bubblewrap's options; none on a machine whose calls have other numbers."""
    return ["--seccomp", str(_FD)] if platform.machine() in _NUMBERS else []


def refuses_memory_files(gpus: bool) -> bool:
    """Return True if a program in a box can't make files that are in no folder, by memfd_create."""
    return platform.machine() in _NUMBERS and not gpus


def opened(command: list[str], gpus: bool) -> list[str]:
    """Return a command that opens the filter for the `options` in `command`, and becomes it."""
    machine = platform.machine()
    return (
        [sys.executable, "-ISc", _OPENS_IT, _filter(machine, gpus).hex(), *command] if machine in _NUMBERS else command
    )


def _filter(machine: str, gpus: bool) -> bytes:
    """Return a program of classic BPF: allow all calls of this machine's own kind but those above."""
    lines = [(_LOAD, 0, 0, _KIND), (_EQUAL, 1, 0, _KINDS[machine]), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, _NUMBER)]
    for test, number in [(_AT_LEAST, _X32), *((_EQUAL, n) for n in _refused(machine, gpus))]:
        lines += [(test, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for call, arguments in _REFUSED_ARGUMENTS:
        rest = [(_RETURN, 0, 0, _REFUSE)]
        for place, value in arguments.items():
            rest = [(_LOAD, 0, 0, _ARGUMENTS + 8 * place), (_EQUAL, 0, len(rest), value), *rest]
        lines += [(_EQUAL, 0, len(rest), _BY_ARGUMENT[machine][call]), *rest, (_LOAD, 0, 0, _NUMBER)]
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, (_RETURN, 0, 0, _ALLOW)])


def _refused(machine: str, gpus: bool) -> list[int]:
    return [n for name, n in _NUMBERS[machine].items() if not (gpus and name in _OF_GPUS)]
