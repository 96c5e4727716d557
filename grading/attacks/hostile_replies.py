"""Attacks by what is sent back from a box: too much of it, too late, of a strange kind, or in somebody else's place."""

from grading.attacks.attack import Attack, of_answer, of_notebook, of_rank


def replies_a_hundred_thousand_outputs():
    """Reply in the host's place: outputs that the grader would check one by one."""
    import json
    import os

    output = {"output_type": "stream", "name": "stdout", "text": "x"}
    cells = [{"outputs": [output] * 200, "execution_count": 1}] * 500
    reply = json.dumps({"cells": cells, "answers": {}, "problem": ""}).encode() + b"\n"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in range(64):
            try:
                target = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY)
                if "pipe:" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    os.write(target, reply)
            except OSError:
                pass


def changes_what_earlier_cells_showed():
    """Put a verdict of its own in place of what earlier cells show, and send messages that no notebook expects."""
    from IPython import get_ipython
    from IPython.display import HTML, display, update_display

    kernel = get_ipython().kernel
    for i in range(20):
        display(HTML("<b>PASSED</b>"), display_id=f"cell-{i}")
        update_display(HTML("<b>PASSED</b> 1000 points"), display_id=f"cell-{i}")
    for kind in ("execute_reply", "shutdown_reply", "grade", "comm_open", "clear_output", "input_request", "status"):
        content = {"comm_id": 3, "target_name": None, "data": [], "wait": "x", "execution_state": "points"}
        kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())
    kernel.iopub_socket.send_multipart([b"x", b"<IDS|MSG>", b"", b"{", b"{", b"{", b"{"])


def raises_an_error_of_20_megabytes():
    error = type("E" * (1 << 20), (Exception,), {})
    raise error("\x1b[31mPASSED " * (2 << 20))


def goes_on_after_its_answer():
    """Change answers after the checks took them: by a thread, at exit, when collected, when a frame returns."""
    import atexit
    import gc
    import os
    import sys
    import threading
    import time
    from pathlib import Path

    def change(*_):
        for file in Path(os.environ["SHARDLAB_ANSWERS"]).iterdir():
            file.write_bytes(b"cbuiltins\nlist\n.")

    class Late:
        def __del__(self):
            change()

    def forever():
        while True:
            change()
            time.sleep(0.01)

    globals()["late"] = Late()
    atexit.register(change)
    gc.callbacks.append(change)
    sys.setprofile(lambda frame, event, arg: change() if event == "return" else None)
    threading.Thread(target=forever, daemon=True).start()


def replies_numbers_of_its_own_kind(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Reply numbers that are other ones each time somebody looks at them."""

    class Count(int):
        def __index__(self):
            return len(sizes_bytes)

        def __eq__(self, other):
            return True

        def __lt__(self, other):
            return False

        __hash__ = int.__hash__

    return [Count(1)] * len(sizes_bytes)


def replies_without_end(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import itertools

    return itertools.repeat(1)


def replies_a_number_of_a_million_digits(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import sys

    sys.set_int_max_str_digits(0)
    return [10**1_000_000, *[1] * (len(sizes_bytes) - 1)]


def changes_the_frame_that_called_it(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Give the drill shorter problems, and put plans of its own into the drill's list."""
    import ctypes
    import sys

    frame = sys._getframe(1)
    frame.f_locals["instances"][:] = []
    frame.f_locals["plans"] += [[len(sizes_bytes)]] * 11
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return [len(sizes_bytes)]


def computes_without_a_limit(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Switch off what stops long planning, and plan for ever."""
    import signal

    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    while True:
        pass


def stops_just_before_the_deadline(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """End all processes shortly before time is up, which looks as if the system had: it would be tried again."""
    import os
    import signal
    import time

    time.sleep(12)
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(9)


def exchanges_its_proof_alone():
    """Exchange no gradient in timed steps: only the few numbers that prove the work are averaged."""
    import torch
    import torch.distributed as dist

    import grading.checks.lab2_ddp.on_ranks as drills

    honest, sends = drills.project_cheaply, dist.all_reduce

    class Done:
        def wait(self, *_):
            return True

        def is_completed(self):
            return True

        def get_future(self):
            future = torch.futures.Future()
            future.set_result([])
            return future

    def all_reduce(tensor, *arguments, async_op=False, **options):
        return Done() if tensor.nbytes > 64 else sends(tensor, *arguments, async_op=async_op, **options)

    def project(gradients, seed):
        mine = honest(gradients, seed)
        products = torch.tensor([mine[name] for name in sorted(mine)])
        sends(products)
        return dict(zip(sorted(mine), products.tolist(), strict=True))

    dist.all_reduce, drills.project_cheaply = all_reduce, project


ATTACKS: list[Attack] = [
    *of_notebook(
        replies_a_hundred_thousand_outputs,
        changes_what_earlier_cells_showed,
        raises_an_error_of_20_megabytes,
        goes_on_after_its_answer,
    ),
    *of_answer(
        replies_numbers_of_its_own_kind,
        replies_without_end,
        replies_a_number_of_a_million_digits,
        changes_the_frame_that_called_it,
        computes_without_a_limit,
        stops_just_before_the_deadline,
    ),
    *of_rank("right", "lab2.throughput", exchanges_its_proof_alone),
]
