"""However a job ends, the launcher says whose fault it was, and nothing of it stays behind."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import KernelManager

from shardlab import LaunchError, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest

WORLD_SIZE = 3


# The failure matrix. Each function fails on one rank; the others wait for it in a collective.


def raises():
    raise ValueError("boom")


def exits():
    os._exit(3)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def loops():
    while True:
        pass


def returns():
    """It leaves while the others wait."""


def sends_less():
    dist.all_reduce(torch.zeros(4))


def sends_more():
    dist.all_reduce(torch.zeros(12))


def calls_something_else():
    dist.all_gather([torch.zeros(8) for _ in range(WORLD_SIZE)], torch.zeros(8))


def one_fails(failure, culprit):
    dist.barrier()  # all are up
    if dist.get_rank() == culprit:
        failure()
    else:
        dist.all_reduce(torch.zeros(8))


@pytest.fixture(scope="module")
def hang_s():
    """A deadline for jobs that hang: many times what a start takes on this machine now."""
    launch(int, WORLD_SIZE)
    started = time.monotonic()
    launch(int, WORLD_SIZE)
    return max(1.2, 10 * (time.monotonic() - started))


@pytest.mark.parametrize("repeats", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("failures", "hangs", "says"),
    [
        ([raises], False, "raised ValueError: boom"),
        ([exits], False, "exited with code 3"),
        ([is_killed], False, "was killed by SIGKILL"),
        ([returns], False, "returned while others still waited for it"),
        ([sends_less, sends_more, calls_something_else], True, "called another collective than the others"),
        ([loops], True, "which issued fewer collectives"),
    ],
    ids=["exception", "exit", "kill", "return", "mismatch", "loop"],
)
def test_failure_is_blamed_and_nothing_stays(failures, hangs, says, repeats, hang_s, no_leaks):
    """Many times in a row, each on a rank drawn by chance."""
    draw = random.Random(0)
    for i in range(repeats):
        culprit = draw.randrange(WORLD_SIZE)
        with pytest.raises(LaunchError) as caught:
            failure = failures[i % len(failures)]
            launch(one_fails, WORLD_SIZE, failure, culprit, timeout_s=hang_s if hangs else 60, stream=False)
        message = str(caught.value)
        assert caught.value.rank == culprit, message
        assert re.search(rf"rank {culprit}\b.* {says}", message.splitlines()[0]), message


def test_two_that_disagree_are_told_apart_by_a_third_that_comes_late(no_leaks):
    def two_disagree():
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(0.3)  # by then gloo has ended rank 1
        dist.all_reduce(torch.zeros(4 if dist.get_rank() == 1 else 8))

    with pytest.raises(LaunchError, match="rank 1 of 3 called another collective than the others"):
        launch(two_disagree, 3, timeout_s=60, stream=False)


def test_a_launch_works_after_each_failure():
    for failure in (raises, exits, is_killed, returns):
        with pytest.raises(LaunchError):
            launch(one_fails, 2, failure, 1)
        assert launch(lambda: dist.get_rank(), 2) == [0, 1]


def test_success_leaves_nothing_either(no_leaks):
    for _ in range(20):
        assert launch(lambda: dist.get_rank(), 2) == [0, 1]


# Ctrl-C, and the launcher's own death

SLEEPS = """
import os, threading
from shardlab import launch

def sleep():
    print("pid", os.getpid())
    threading.Event().wait()

launch(sleep, 2)
"""


@pytest.fixture
def start_python():
    """start_python(code): a Python of its own, with its own folder for temporary files, `.temporary`."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long a name for the forkserver's socket

        def start(code: str) -> subprocess.Popen:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            environment = os.environ | {"TMPDIR": folder}
            process = subprocess.Popen([sys.executable, "-c", code], **pipes, env=environment, start_new_session=True)
            process.temporary = Path(folder)
            return process

        yield start


def pids_of_ranks(lines, world_size: int = 2) -> list[int]:
    """Read printed lines until every rank has given its pid."""
    pids = []
    for line in lines:
        pids += map(int, re.findall(r"\[rank \d+\] pid (\d+)", line))
        if len(pids) == world_size:
            return pids
    raise AssertionError("the ranks did not all start")


def test_ctrl_c_ends_every_rank(start_python, all_gone):
    """A terminal's Ctrl-C goes to the launcher's whole process group."""
    launcher = start_python(SLEEPS)
    pids = pids_of_ranks(launcher.stdout)
    os.killpg(launcher.pid, signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert launcher.returncode == -signal.SIGINT
    assert all_gone(pids)
    left = [p.name for p in launcher.temporary.iterdir() if not p.name.startswith("torchinductor_")]
    assert not left  # torch keeps a cache for the next process, and makes its folder at import


def test_ctrl_c_while_ranks_are_being_started(start_python, all_gone):
    """torch's elastic launcher takes the signal over meanwhile, and raises an exception of its own."""
    launcher = start_python(SLEEPS.replace("launch(sleep", "print('now', flush=True); launch(sleep"))
    assert launcher.stdout.readline() == "now\n"
    while not (started := psutil.Process(launcher.pid).children()):
        pass  # the forkserver, which takes seconds to import torch
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "SignalException" not in errors
    assert all_gone([p.pid for p in started])


def test_a_second_ctrl_c_waits_until_the_ranks_are_gone(start_python, all_gone):
    launcher = start_python(SLEEPS)
    pids = pids_of_ranks(launcher.stdout)
    while launcher.poll() is None:
        launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert all_gone(pids)


def test_no_rank_outlives_its_launcher(start_python, all_gone):
    """A killed launcher can clean up nothing: the ranks must see it go."""
    launcher = start_python(SLEEPS)
    pids = pids_of_ranks(launcher.stdout)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    assert set(pids) < set(family)
    launcher.kill()
    launcher.communicate(timeout=60)
    assert all_gone(family)


def test_the_interrupt_button_of_a_notebook(all_gone):
    """The cell ends with KeyboardInterrupt, its ranks are gone, and the next launch works."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        request = client.execute(SLEEPS, stop_on_error=False)  # or the kernel may abort the next cell with this one
        pids = pids_of_ranks(printed_text(client))
        manager.interrupt_kernel()
        assert reply(client, request)["ename"] == "KeyboardInterrupt"
        assert all_gone(pids)
        assert reply(client, client.execute("assert launch(os.getppid, 1)"))["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def printed_text(client):
    while True:
        yield client.get_iopub_msg(timeout=60)["content"].get("text", "")


def reply(client, request: str) -> dict:
    while True:
        message = client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            return message["content"]
