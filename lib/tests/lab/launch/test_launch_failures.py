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

import psutil
import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s
from jupyter_client.manager import KernelManager

from shardlab import LaunchError, launch

WORLD_SIZE = 3


# The failure matrix. Each function fails on one rank; the others wait for it in a collective.


def raises():
    raise ValueError("boom")


def exits():
    os._exit(3)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_by_a_real_time_signal():
    """Most of them have no name, and a name for 40 would be an error."""
    os.kill(os.getpid(), 40)


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


MISMATCH = "called another collective than the others"
FAILURES = {  # what the message says, and whether the job hangs
    raises: ("raised ValueError: boom", False),
    exits: ("exited with code 3", False),
    is_killed: ("was killed by SIGKILL", False),
    is_killed_by_a_real_time_signal: ("was killed by signal 40", False),
    returns: ("returned while others still waited for it", False),
    sends_less: (MISMATCH, True),
    sends_more: (MISMATCH, True),
    calls_something_else: (MISMATCH, True),
    loops: ("which issued fewer collectives than others", True),
}


@pytest.mark.parametrize("repeats", [2, pytest.param(20, marks=pytest.mark.night)])
def test_failure_is_blamed_and_nothing_stays(repeats, no_leaks):
    """Each failure many times in a row, each time on a rank drawn by chance, but never twice in a row on the same."""
    draw, culprit = random.Random(0), 0
    for failure, (says, hangs) in FAILURES.items():
        timeout_s = deadline_s(0.6 if hangs else 30)
        for _ in range(repeats):
            culprit = (culprit + draw.randrange(1, WORLD_SIZE)) % WORLD_SIZE
            with pytest.raises(LaunchError) as caught:
                launch(one_fails, WORLD_SIZE, failure, culprit, timeout_s=timeout_s, stream=False)
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
        launch(two_disagree, 3, timeout_s=deadline_s(60), stream=False)


def test_a_launch_works_after_each_failure():
    for failure in (raises, exits, is_killed, returns):
        with pytest.raises(LaunchError):
            launch(one_fails, 2, failure, 1)
        assert launch(lambda: dist.get_rank(), 2) == [0, 1]


def test_success_leaves_nothing_either(no_leaks):
    for _ in range(5):
        assert launch(lambda: dist.get_rank(), 2) == [0, 1]


def test_the_last_words_of_a_rank_that_dies_are_shown_and_told(capsys):
    """A line without its newline is often what a program says last."""

    def dies():
        os.write(1, b"a line\nand half a li")
        os._exit(3)

    with pytest.raises(LaunchError) as caught:
        launch(dies, 1)
    assert str(caught.value).endswith("Its last output:\n  a line\n  and half a li")
    assert capsys.readouterr().out.splitlines() == ["[rank 0] a line", "[rank 0] and half a li"]


def test_signal_handlers_are_the_callers_again():
    """However the launch ends."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {n: signal.getsignal(n) for n in numbers}
    mine = {n: (lambda number, frame: None) for n in numbers}
    try:
        for n, handler in mine.items():
            signal.signal(n, handler)
        launch(int, 1)
        assert {n: signal.getsignal(n) for n in numbers} == mine
        with pytest.raises(LaunchError):
            launch(raises, 1)
        assert {n: signal.getsignal(n) for n in numbers} == mine
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


# Ctrl-C, and the launcher's own death

SLEEPS = """
import os, threading
from shardlab import launch

def sleep():
    print("pid", os.getpid())
    threading.Event().wait()

launch(sleep, 2)
"""
THREE_TIMES = """
for time in range(2):
    print("now", flush=True)
    try:
        launch(sleep, 2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
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


def test_ctrl_c_ends_every_rank_whenever_it_comes(start_python, all_gone):
    """While ranks are being started; while they work; and many times. The launcher goes on if its script does."""
    launcher = start_python(SLEEPS.replace("launch(sleep, 2)", THREE_TIMES))

    assert launcher.stdout.readline() == "now\n"
    while not psutil.Process(launcher.pid).children():
        pass  # the forkserver, which takes seconds to import torch
    launcher.send_signal(signal.SIGINT)
    assert launcher.stdout.readline() == "interrupted\n"

    # a terminal's Ctrl-C goes to the launcher's whole process group
    assert launcher.stdout.readline() == "now\n"
    pids = pids_of_ranks(launcher.stdout)
    [files] = launcher.temporary.glob("shardlab-*")
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.stdout.readline() == "interrupted\n"
    assert all_gone(pids)
    assert not files.exists()  # the next launch has some of its own

    # the first of many ends the launch, the second must wait until the ranks are gone, and no third kills the launcher
    pids = pids_of_ranks(launcher.stdout)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    while launcher.poll() is None:
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.01)  # else the launcher does nothing but take signals
    launcher.communicate(timeout=deadline_s(60))  # what it says is cut off where the last signal came
    assert all_gone({*pids, *family})


@pytest.mark.night
def test_a_launcher_that_ctrl_c_ends_leaves_nothing(start_python, all_gone):
    launcher = start_python(SLEEPS)
    pids = pids_of_ranks(launcher.stdout)
    os.killpg(launcher.pid, signal.SIGINT)
    _, errors = launcher.communicate(timeout=deadline_s(60))
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert launcher.returncode == -signal.SIGINT
    assert all_gone(pids)
    left = [p.name for p in launcher.temporary.iterdir() if not p.name.startswith("torchinductor_")]
    assert not left  # torch keeps a cache for the next process, and makes its folder at import


def test_no_rank_outlives_its_launcher(start_python, all_gone):
    """A killed launcher can clean up nothing: the ranks must see it go."""
    launcher = start_python(SLEEPS)
    pids = pids_of_ranks(launcher.stdout)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    assert set(pids) < set(family)
    launcher.kill()
    launcher.communicate(timeout=deadline_s(60))
    assert all_gone(family)


@pytest.mark.night
def test_the_interrupt_button_of_a_notebook(all_gone):
    """The cell ends with KeyboardInterrupt, its ranks are gone, and the next launch works."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=deadline_s(60))
        request = client.execute(SLEEPS, stop_on_error=False)  # or the kernel may abort the next cell with this one
        pids = pids_of_ranks(printed_text(client))
        manager.interrupt_kernel()
        said = reply(client, request)
        assert said["ename"] == "KeyboardInterrupt"
        assert said["traceback"] == ["KeyboardInterrupt: interrupted; 2 ranks ended"], "no frame of ours"
        assert all_gone(pids)
        assert reply(client, client.execute("assert launch(os.getppid, 1)"))["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def printed_text(client):
    while True:
        yield client.get_iopub_msg(timeout=deadline_s(60))["content"].get("text", "")


def reply(client, request: str) -> dict:
    while True:
        message = client.get_shell_msg(timeout=deadline_s(60))
        if message["parent_header"].get("msg_id") == request:
            return message["content"]


NO_NAME = """
import getpass, os, pwd
for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
from shardlab import launch
print(launch(getpass.getuser, 2))
"""


def test_a_user_whom_the_system_does_not_list_has_a_name_on_every_rank(start_python):
    """As in a container that runs as a number: PyTorch's compiler asks for the name when it is imported."""
    out, said = start_python(NO_NAME).communicate(timeout=deadline_s(60))
    assert out == f"{[f'user-{os.getuid()}'] * 2}\n", said


def test_a_forkserver_that_dies_as_it_imports_is_named(start_python, tmp_path):
    (tmp_path / "dies_when_imported.py").write_text("raise KeyError('uid not found')")
    code = f"""
import os, sys
from shardlab.launch import api
api._PRELOADED[:] = ["dies_when_imported"]
os.environ["PYTHONPATH"] = {str(tmp_path)!r}
sys.path.insert(0, {str(tmp_path)!r})  # the server takes its path from the environment, since Python 3.13 from here
try:
    api.launch(int, 2)
except OSError as error:
    print(error)
"""
    out, said = start_python(code).communicate(timeout=deadline_s(60))
    assert "the server from which ranks are forked ended while it imported PyTorch" in out, said


class WithoutWords(Exception):
    def __str__(self):
        raise ValueError("no words")


def raises_without_words():
    raise WithoutWords


def raises_five_megabytes():
    raise ValueError("first" + "x" * 5_000_000 + "last")


def test_an_error_whose_words_fail_is_named():
    with pytest.raises(LaunchError, match="raised WithoutWords: <exception str.. failed>") as failed:
        launch(raises_without_words, 1)
    assert "raise WithoutWords" in str(failed.value)


def test_a_long_error_is_cut():
    """A browser would show all of it, and hang."""
    with pytest.raises(LaunchError, match=r"raised ValueError: firstx") as failed:
        launch(raises_five_megabytes, 1)
    assert "more characters" in str(failed.value) and str(failed.value).count("xlast") == 2
    assert len(str(failed.value)) < 13_000
