"""A box that is held still: nothing in it computes, whatever it starts meanwhile; and it goes on afterwards."""

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from deadlines import deadline_s
from test_sandbox import SMALL, Python, bubblewrap

from grading.boxes.sandbox import Bubblewrap
from grading.boxes.sandbox.boxed_program import BoxedProgramError
from grading.boxes.sandbox.process_tree_memory import family
from grading.boxes.sandbox.ran_while_held_still import SPARE_NS, Ran


@bubblewrap
def test_what_is_held_still_computes_nothing_and_goes_on_afterwards():
    source = """if True:
        import os, sys
        sys.stdout.write("{}\\n"); sys.stdout.flush()
        for _ in range(3): os.fork()
        while True: pass
        """
    program = Python(source, Bubblewrap(SMALL))

    def used_s() -> float:
        return sum(sum(p.cpu_times()[:2]) for p in family(program._process.pid))

    try:
        program.send({}, timeout_s=deadline_s(30))
        program.receive()
        for seconds in (0.0, 0.01, 1.0):  # the first, while they are being started
            time.sleep(seconds)
            program.freeze()
            before = used_s()
            time.sleep(0.5)
            assert used_s() == before
            assert {p.status() for p in family(program._process.pid)} == {psutil.STATUS_STOPPED}
            program.thaw()
        time.sleep(1)
        assert used_s() > before
        program.freeze()
    finally:
        processes = family(program._process.pid)
        program.close()
    assert len(processes) >= 8
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@bubblewrap
def test_who_starts_another_while_it_is_told_to_stop_is_held_still_with_it():
    source = """if True:
        import os, sys
        sys.stdout.write("{}\\n"); sys.stdout.flush()
        while True:
            if os.fork(): os.wait()
            else: sys.exit()
        """
    program = Python(source, Bubblewrap(SMALL))
    try:
        program.send({}, timeout_s=deadline_s(30))
        program.receive()
        for _ in range(100):
            program.freeze()
            held = family(program._process.pid)
            assert all(p.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for p in held)
            program.thaw()
    finally:
        program.close()


@bubblewrap
def test_who_is_never_the_same_for_two_looks_is_held_still_too():
    """A chain: each starts the next one and ends, adopted by a first one that sleeps."""
    source = """if True:
        import ctypes, os, signal, sys, time
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        links = os.open("/tmp/links", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.stdout.write("{}\\n"); sys.stdout.flush()
        if os.fork(): time.sleep(60)
        while True:
            os.write(links, b".")
            if os.fork(): os._exit(0)
        """
    program = Python(source, Bubblewrap(replace(SMALL, processes=200)))
    try:
        program.send({}, timeout_s=deadline_s(30))
        program.receive()
        links = Path("/proc", str(family(program._process.pid)[2].pid), "root/tmp/links")
        for _ in range(5):
            program.freeze()
            before = links.stat().st_size
            time.sleep(0.2)
            assert links.stat().st_size == before
            program.thaw()
            time.sleep(0.2)
            assert links.stat().st_size > before
    finally:
        program.close()


@pytest.mark.parametrize(
    ("after", "went_on"),
    [
        (Ran(1_000, 8), False),  # 8 is ours, which looked
        (Ran(1_000, 9), True),
        (Ran(1_000, None), False),
        (Ran(1_000 + SPARE_NS, 8), False),
        (Ran(1_001 + SPARE_NS, 8), True),
    ],
)
def test_one_process_more_or_more_time_than_coming_to_rest_takes_is_going_on(after, went_on):
    assert after.on_since(Ran(1_000, 7)) == went_on


GOES_ON = """if True:
    import ctypes, os, signal, sys, time
    libc, call = ctypes.CDLL(None), (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
    signal.signal(signal.SIGCONT, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    timers = [ctypes.c_void_p() for _ in range(4)]
    for timer in timers: libc.timer_create(1, call, ctypes.byref(timer))
    sys.stdout.write("{}\\n"); sys.stdout.flush()
    while True:
        for i, timer in enumerate(timers):
            libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 100_000_000 + i * 20_000_000), None)
        """


@bubblewrap
@pytest.mark.parametrize(
    "what", ["time.sleep(0.001)", "sum(range(1000))", "os.fork() or os._exit(0)"], ids=["rests", "computes", "starts"]
)
def test_who_goes_on_while_it_is_held_still_is_found_out(what):
    """The kernel's timers continue it. What it starts may be gone when anybody looks. One that rests has gained nothing
    and may be left alone."""
    program = Python(GOES_ON + what, Bubblewrap(SMALL))
    try:
        program.send({}, timeout_s=deadline_s(30))
        program.receive()
        found = False
        for _ in range(10):
            program.freeze()
            time.sleep(0.3)
            try:
                program.thaw()
            except BoxedProgramError as error:
                assert str(error).startswith("its processes went on while they were held still")
                found = True
                break
        assert found or what.startswith("time.sleep")
    finally:
        program.close()


@bubblewrap
def test_many_threads_that_are_stopped_in_the_middle_of_something_have_not_gone_on():
    source = """if True:
        import os, sys, threading
        sys.stdout.write("{}\\n"); sys.stdout.flush()
        os.fork()
        for _ in range(8): threading.Thread(target=lambda: [sum(range(9)) for _ in iter(int, 1)], daemon=True).start()
        while True: os.stat("/")
        """
    program = Python(source, Bubblewrap(SMALL))
    try:
        program.send({}, timeout_s=deadline_s(30))
        program.receive()
        for _ in range(30):
            program.freeze()
            time.sleep(0.02)
            program.thaw()
    finally:
        program.close()


@bubblewrap
@pytest.mark.parametrize("programs", [2, pytest.param(5, marks=pytest.mark.night)])
def test_who_stops_the_program_that_would_stop_it_is_ended(programs, monkeypatch):
    """It has the same user, and is seen in the box."""
    source = """if True:
        import os, signal, sys, time
        if os.fork() == 0:
            while True:
                last = int(open("/proc/loadavg").read().split()[4])
                for pid in range(max(os.getpid() + 1, last), last + 3):
                    try: os.kill(pid, signal.SIGSTOP)
                    except OSError: pass
        sys.stdout.write("{}\\n"); sys.stdout.flush()
        time.sleep(60)
        """
    monkeypatch.setattr("grading.boxes.sandbox.boxed_program._PATIENCE_S", 1.0)
    for _ in range(programs):  # its helper, told to stop first, is not always quick enough
        program = Python(source, Bubblewrap(SMALL))
        began = time.monotonic()
        try:
            program.send({}, timeout_s=deadline_s(30))
            program.receive()
            for _ in range(20):
                program.freeze()
                program.thaw()
                time.sleep(0.02)
        except BoxedProgramError as error:
            assert str(error) == "its processes did not stop when told to"
        finally:
            program.close()
        assert time.monotonic() - began < 30
