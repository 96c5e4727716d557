"""`launch` runs a function on N real ranks, from wherever it is called, and says clearly what went wrong."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import nbformat
import papermill
import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s

from shardlab import LaunchError, launch, local_device
from shardlab.launch.pickling import dumps
from shardlab.measure.memory import _is_collective
from shardsim import simulated


def sum_of_ranks():
    t = torch.tensor([float(dist.get_rank())], device=local_device())
    dist.all_reduce(t)
    return dist.get_rank(), dist.get_world_size(), t.item()


# What comes back


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_results_come_in_rank_order(world_size):
    total = world_size * (world_size - 1) / 2
    assert launch(sum_of_ranks, world_size) == [(r, world_size, total) for r in range(world_size)]


@pytest.mark.parametrize(("ends", "code"), [(lambda: "a result", 0), (sys.exit, 0), (lambda: 1 / 0, 1)])
def test_a_process_that_the_function_forks_does_not_return_as_its_rank(ends, code):
    def forks():
        if (child := os.fork()) == 0:
            return ends()
        end = time.monotonic() + 5
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.01)
        return dist.get_rank(), ended == (child, 256 * code)

    assert launch(forks, 2, device="cpu", stream=False) == [(0, True), (1, True)]


def test_functions_travel_by_value():
    """As in a notebook, where nothing can be imported: a closure over a local class, a local function and a value."""

    class Box:
        def __init__(self, content):
            self.content = content

    def double(x):
        return 2 * x

    offset = 10
    boxes = launch(lambda x, y: Box(double(x) + y + offset + dist.get_rank()), 2, 3, y := 100)
    assert [b.content for b in boxes] == [116, 117]
    assert y == 100


def test_a_cached_function_of_a_notebook_travels_by_value():
    names = {"__name__": "a_notebook"}
    exec("import functools\n@functools.lru_cache(maxsize=7)\ndef twice(x):\n    return 2 * x", names)
    twice = cloudpickle.loads(dumps(names["twice"]))
    assert twice(3) == 6 and twice.cache_parameters()["maxsize"] == 7
    assert cloudpickle.loads(dumps(_is_collective)) is _is_collective


def test_operations_travel_by_name():
    """A policy of recomputation names them, and a notebook has `aten = torch.ops.aten` among its globals."""
    for operation in (torch.ops, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default):
        assert cloudpickle.loads(dumps([operation]))[0] is operation


def test_large_results_and_arguments_travel():
    """More than a pipe holds, both ways."""
    big = torch.arange(2_000_000)
    assert all(torch.equal(r, big + i) for i, r in enumerate(launch(lambda t: t + dist.get_rank(), 2, big)))


def test_ranks_see_what_torchrun_sets():
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    seen = launch(lambda: ([os.environ[n] for n in names], torch.get_num_threads()), 2, threads_per_rank=2)
    assert seen == [([str(r), str(r), "2", "2", "2"], 2) for r in range(2)]


def test_the_device_is_told_to_the_ranks():
    assert launch(local_device, 1, device="cpu") == [torch.device("cpu")]


def test_cpu_ranks_see_no_gpu():
    """Or whatever takes "the accelerator", as fully_shard does for its mesh, would leave the CPU."""
    assert launch(lambda: os.environ["CUDA_VISIBLE_DEVICES"], 1, device="cpu") == [""]


def test_two_threads_may_launch_at_once(no_leaks, capfd):
    """Each has its own port, and the script's main module is still there afterwards."""
    results, main = {}, sys.modules["__main__"]
    threads = [threading.Thread(target=lambda i=i: results.update({i: launch(lambda: i, 2)})) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: [i, i] for i in range(4)}
    assert sys.modules["__main__"] is main
    assert capfd.readouterr().err == ""  # a graded cell that writes to stderr scores nothing


# Printed lines


def test_printed_lines_carry_their_rank(capsys):
    def talk():
        print("one")
        os.write(1, b"two, from C\n")
        print("three", file=sys.stderr)
        print("four, no newline", end="")

    launch(talk, 2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}] ")]
        assert mine == ["one", "two, from C", "three", "four, no newline"]
    assert len(lines) == 8


def test_no_printed_lines_on_request(capsys):
    launch(lambda: print("hello"), 2, stream=False)
    assert capsys.readouterr().out == ""


def test_output_streams_while_the_rank_runs(tmp_path, monkeypatch):
    """The rank goes on only when its line was shown: kept back until the end, it would run into the deadline."""
    shown = tmp_path / "shown"

    class Screen(io.StringIO):
        def write(self, text):
            if "[rank 0] waiting" in text:
                shown.touch()
            return super().write(text)

    def wait():
        print("waiting")
        while not shown.exists():
            pass

    monkeypatch.setattr(sys, "stdout", Screen())
    launch(wait, 1, timeout_s=deadline_s(30))


# What goes wrong


BAD_ARGUMENTS = [
    ("not a function", 2, {}, TypeError, "fn must be a function, not str"),
    (print, 0, {}, ValueError, "world_size .* at least 1, not 0"),
    (print, -1, {}, ValueError, "world_size .* not -1"),
    (print, 2.0, {}, ValueError, "world_size .* not 2.0"),
    (print, "2", {}, ValueError, "world_size .* not '2'"),
    (print, 2, {"timeout_s": 0}, ValueError, "timeout_s must be more than 0 seconds"),
    (print, 2, {"device": "gpu"}, ValueError, 'device must be "cpu" or "cuda", not \'gpu\''),
    (print, 2, {"backend": "carrier pigeon"}, LaunchError, "(?i)carrier pigeon"),
    (print, 2, {"network": simulated("fast")}, ValueError, "can't read 'fast'"),
    (print, 2, {"network": "1 Gb/s, 50 us"}, TypeError, r"shardsim.simulated\('1 Gb/s, 50 us'\)"),
]


def test_a_bad_argument_is_named(no_leaks):
    for fn, world_size, options, error, says in BAD_ARGUMENTS:
        with pytest.raises(error, match=says):
            launch(fn, world_size, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(ValueError, match="torch finds no GPU"):
        launch(sum_of_ranks, 2, device="cuda")


def test_the_culprits_own_traceback_comes_first():
    """The others fail in its wake; their errors must not hide the cause."""

    def inner():
        return 1 / 0

    def work():
        if dist.get_rank() == 2:
            inner()
        dist.barrier()

    with pytest.raises(LaunchError) as caught:
        launch(work, 4)
    message = str(caught.value)
    assert caught.value.rank == 2 and not caught.value.timed_out
    first, *rest = message.split("\n\n")
    assert first == "rank 2 of 4 raised ZeroDivisionError: division by zero"
    assert rest[0].startswith("Traceback") and "in inner" in rest[0] and "return 1 / 0" in rest[0]
    assert "shardlab/launch" not in message


def test_of_two_exceptions_the_first_is_blamed(tmp_path):
    """Rank 0 fails because rank 1 did, and has the smaller number: time decides."""
    failed = tmp_path / "failed"

    def work():
        if dist.get_rank() == 1:
            failed.touch()
            raise KeyError("the cause")
        while not failed.exists():
            pass
        raise ValueError("the consequence")

    def slow_to_follow():
        try:
            work()
        except ValueError:
            threading.Event().wait(0.2)
            raise

    with pytest.raises(LaunchError, match="rank 1 of 2 raised KeyError: 'the cause'"):
        launch(slow_to_follow, 2)


def test_a_result_that_cannot_travel_is_an_error():
    with pytest.raises(LaunchError, match=r"rank 1 of 2 raised TypeError: .*lock"):
        launch(lambda: threading.Lock() if dist.get_rank() == 1 else None, 2)


def test_a_hang_shows_every_stack_and_last_collective():
    def first_stop():
        dist.all_reduce(torch.zeros(7))

    def second_stop():
        dist.broadcast(torch.zeros(3), 0)

    def work():
        if dist.get_rank() == 2:
            threading.Event().wait()
        first_stop() if dist.get_rank() == 0 else second_stop()

    timeout_s = deadline_s(0.8)
    with pytest.raises(LaunchError, match=f"no result from ranks 0-2 within {timeout_s:g} s") as caught:
        launch(work, 3, timeout_s=timeout_s)
    message = str(caught.value)
    assert caught.value.timed_out
    stacks = {r: message.split(f"\nrank {r} was running")[1].split("\n\n")[0] for r in range(3)}
    assert "last collective #1: all_reduce Float[7] at test_launch.py" in stacks[0] and "in first_stop" in stacks[0]
    assert "last collective #1: broadcast Float[3] at test_launch.py" in stacks[1] and "in second_stop" in stacks[1]
    assert "last collective" not in stacks[2] and "threading.Event().wait()" in stacks[2]
    assert "shardlab/launch" not in message


def test_the_rank_that_others_wait_for_is_found_after_many_collectives():
    """Only the last 50 collectives travel in the report; the count of all must decide, not the length of the list."""

    def work():
        for _ in range(200 - (dist.get_rank() == 1)):
            dist.all_reduce(torch.zeros(1))
        if dist.get_rank() == 1:
            threading.Event().wait()
        dist.barrier()

    with pytest.raises(LaunchError, match="look at rank 1, which issued fewer collectives than others") as caught:
        launch(work, 3, timeout_s=deadline_s(1))
    assert caught.value.rank == 1


def test_a_rank_stuck_in_native_code_shows_its_stack():
    """It holds the interpreter, so that no Python in it can answer: a signal handler in C does."""

    def deaf():
        re.match("(a+)+b", 60 * "a")  # takes for ever, and never lets go of the interpreter

    def work():
        if dist.get_rank() == 1:
            deaf()
        dist.barrier()

    with pytest.raises(LaunchError, match="native code holds the interpreter") as caught:
        launch(work, 3, timeout_s=deadline_s(0.8))
    assert caught.value.rank == 1 and "in deaf" in str(caught.value)


@pytest.mark.timeout(20)
def test_a_rank_that_never_stops_printing_meets_the_deadline(no_leaks):
    def chatter():
        while True:
            print("x" * 1000)

    timeout_s = deadline_s(0.5)
    with pytest.raises(LaunchError, match=f"no result from ranks 0, 1 within {timeout_s:g} s"):
        launch(chatter, 2, timeout_s=timeout_s, stream=False)


def test_a_thread_that_never_ends_does_not_keep_the_launcher(no_leaks):
    """Every rank has returned: a forgotten thread is no reason to wait."""
    assert launch(lambda: threading.Thread(target=threading.Event().wait).start(), 2, timeout_s=deadline_s(60)) == [
        None,
        None,
    ]


def test_what_a_rank_started_ends_with_it(all_gone):
    def start():
        return subprocess.Popen(["sleep", "1000"]).pid

    assert all_gone(launch(start, 2))


def test_legitimate_differences_are_no_disagreement():
    """scatter's source puts in more than the others; a later failure must not be blamed on it."""

    def work():
        n = dist.get_world_size()
        dist.scatter(torch.zeros(2), [torch.zeros(2)] * n if dist.get_rank() == 0 else None, src=0)
        if dist.get_rank() == 2:
            raise ValueError("later")
        dist.barrier()

    with pytest.raises(LaunchError) as caught:
        launch(work, 3)
    assert caught.value.rank == 2 and "disagree" not in str(caught.value)


# Where it is called from

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from shardlab import launch, local_device
from shardsim import simulated

OFFSET = 10

def work(x):
    t = torch.full((2,), float(dist.get_rank() + x + OFFSET), device=local_device())
    dist.all_reduce(t)
    print("hello from", dist.get_rank())
    return dist.get_rank(), t.tolist()

world_size = int(os.environ.get("WORLD_SIZE", 2))
results = [launch(work, world_size, 5), launch(lambda: dist.get_rank(), world_size)]
if "RANK" in os.environ:
    try:
        launch(work, world_size, 5, network=simulated("1 GB/s, 5 us"), device="cpu", threads_per_rank=3)
    except ValueError as error:
        results.append(str(error))
with open(os.path.join(sys.argv[1], os.environ.get("RANK", "launcher") + ".json"), "w") as file:
    json.dump(results, file)
"""
EXPECTED = [[[0, [31.0, 31.0]], [1, [31.0, 31.0]]], [0, 1]]


def run_script(folder: Path, *nodes: list[str]) -> tuple[dict, list[str]]:
    """Run SCRIPT once for each command line before its name; what each launcher or rank got, and what was printed."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    commands = [[sys.executable, *node, str(script), str(folder)] for node in nodes]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(c, env=environment, **pipes) for c in commands]
    printed = [p.communicate(timeout=deadline_s(120))[0] for p in running]
    assert [p.returncode for p in running] == [0] * len(running), "\n".join(printed)
    return {f.stem: json.loads(f.read_text()) for f in folder.glob("*.json")}, printed


def torchrun(*options: str) -> list[str]:
    return ["-m", "torch.distributed.run", *options]


def test_from_a_plain_script(tmp_path):
    """Without `if __name__ == "__main__"`: the ranks do not import the script again."""
    results, printed = run_script(tmp_path, [])
    assert results == {"launcher": EXPECTED}
    assert sorted(printed[0].splitlines()) == ["[rank 0] hello from 0", "[rank 1] hello from 1"]


@pytest.mark.night
def test_under_torchrun(tmp_path):
    """On one node."""
    check_results(run_script(tmp_path, torchrun("--nproc-per-node=2"))[0])


def check_results(results: dict) -> None:
    """A later launch can't change what the first one set up, and is not run as if it had."""
    assert set(results) == {"0", "1"}
    for found in results.values():
        assert found[:2] == EXPECTED
        assert "with backend='simulated', network=" in found[2] and "first launch" in found[2]


@pytest.mark.night
def test_under_torchrun_on_two_nodes(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        endpoint = f"--rdzv-endpoint=127.0.0.1:{s.getsockname()[1]}"
    node = torchrun("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test", endpoint)
    check_results(run_script(tmp_path, node, node)[0])


def test_torchrun_with_another_number_of_ranks_is_an_error(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="inside a job of 3 ranks"):
        launch(sum_of_ranks, 2)


@pytest.mark.night  # by day a lab is graded: its notebook launches, too
def test_from_a_notebook(tmp_path):
    """Executed by papermill, as the course's notebooks are; the function lives in a cell."""
    cells = [
        "import torch.distributed as dist\nfrom shardlab import launch\noffset = 10",
        "def work():\n    print('hello')\n    return dist.get_rank() + offset",
        "print(launch(work, 2), flush=True)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbformat.write(notebook, tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", kernel_name="python3", progress_bar=False
    )
    outputs = done.cells[-1].outputs
    assert all(o.get("name") == "stdout" for o in outputs)  # a graded cell that writes to stderr scores nothing
    lines = "".join(o.text for o in outputs).splitlines()
    assert sorted(lines) == ["[10, 11]", "[rank 0] hello", "[rank 1] hello"]


def test_a_variable_called_config_does_not_drag_torch_along():
    """A function that mentions `dist` and `config` seems to need torch.distributed.config, which can't be packed."""
    source = "import torch.distributed as dist\nconfig = 7\ndef fn(): return config + dist.get_rank()"
    names = {"__name__": "a_notebook"}
    exec(source, names)
    assert launch(names["fn"], 2) == [7, 8]


def waits_for_a_rank_that_returned() -> float:
    """Seconds until rank 1 is told that rank 0 has closed its connections."""
    dist.barrier()
    began = time.monotonic()
    if dist.get_rank() == 1:
        with pytest.raises(RuntimeError, match="closed"):
            dist.recv(torch.zeros(1), 0)
    return time.monotonic() - began


def test_a_rank_that_returned_keeps_its_connections_for_a_moment():
    """Another rank may still connect to it, in a group that both have just made: torch waits for nobody there."""
    assert launch(waits_for_a_rank_that_returned, 2, device="cpu")[1] > 0.4


@pytest.mark.parametrize("folder", ["a #?%20 b", "x" * 89])
def test_folders_for_temporary_files_with_long_and_odd_names(folder, tmp_path):
    """A socket's path has a limit, and in a URL # and ? have a meaning."""
    (tmp_path / folder).mkdir()
    script = "from shardlab import launch\nimport torch.distributed as dist\nprint(launch(dist.get_rank, 2))"
    environment = os.environ | {"TMPDIR": str(tmp_path / folder)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[0, 1]", done.stderr
