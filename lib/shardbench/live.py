"""Live ranks, ours, ipyparallel's and nbdistributed's: the start, a cell, a collective that waits, an error and more.

Each round starts a fresh process for each of them, in turn. The other two are measured only where they are installed;
neither is a dependency of the course. The measures are those of a reader at a notebook: seconds until the next cell can
run, and lines that equal output of four ranks fills. None: the tool has no such thing.

- A collective that some ranks have not called blocks ipyparallel's cell until they call it. nbdistributed gives the
  cell back after 30 s, with an error that names no collective.
- nbdistributed loses what it sends to a rank that is not there yet, and its cell fails after 30 s. So its start ends
  here when short cells, sent again and again, are answered. Its interrupt, which Jupyter sends to the kernel's whole
  process group, ends its ranks.
- nbdistributed's own commands to stop and to start again end processes of this machine by their names, other people's
  too. Here its parts are stopped one by one, as its `shutdown_all` does.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from shardbench import environment

WORLD_SIZE = 4
CLOCK = """
import contextlib, io, json, os, signal, threading, time
now, found = time.perf_counter, {}

def timed(name, call, *args, **options):
    start = now()
    try:
        return call(*args, **options)
    finally:
        found.setdefault(name, []).append(now() - start)

began = now()
"""
OURS = """
from shardlive import RankError, Ranks
shown = []

def raises(kind, call, *args, **options):
    try:
        call(*args, **options)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")

ranks = Ranks(4, device="cpu")
found["cold_s"] = [now() - began]
ranks.stop()
ranks = timed("warm_s", Ranks, 4, device="cpu")
ranks.run("x = torch.ones(4)", show=shown.append)
for _ in range(20):
    timed("cell_s", ranks.run, "y = x + 1", show=shown.append)
ranks.run("print('the same')", show=shown.append)
found["lines"] = [sum("the same" in line for line in shown)]
timed("pending_s", ranks.run, "dist.all_reduce(x)", [0], show=shown.append)
assert "ranks 1-3" in shown[-1], shown
timed("freed_s", ranks.run, "dist.all_reduce(x)", [1, 2, 3], show=shown.append)
assert ranks.pull("x[0].item()") == [4.0] * 4
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = now()
raises(KeyboardInterrupt, ranks.run, "import time; time.sleep(30)")
found["interrupt_s"] = [now() - start - 0.5]
timed("error_s", raises, RankError, ranks.run, "1 / 0 if rank == 2 else 1", show=shown.append)
timed("restart_s", ranks.restart)
timed("stop_s", ranks.stop)
print(json.dumps(found))
"""
IPYPARALLEL = """
import ipyparallel as ipp
GROUP = '''
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK=str(rank), WORLD_SIZE="4")
dist.init_process_group("gloo")
x = torch.ones(4)
'''

def start():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    cluster = ipp.Cluster(n=4, log_level=50)
    client = cluster.start_and_connect_sync(activate=False)
    view = client[:]
    view.block = True
    view.scatter("ranks", range(4))
    view.push({"PORT": port})
    view.execute("rank = ranks[0]")
    view.execute(GROUP)
    return cluster, client, view

with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    cluster, client, view = start()
    found["cold_s"] = [now() - began]
    cluster.stop_cluster_sync()
    cluster, client, view = timed("warm_s", start)
    for _ in range(20):
        timed("cell_s", view.execute, "y = x + 1")
    said = view.execute("print('the same')")
    found["lines"] = [sum("the same" in out for out in said.stdout)]
    waiting = client[0].execute("dist.all_reduce(x)", block=False)
    time.sleep(2)
    assert not waiting.ready()  # with block=True the cell would still be there
    timed("freed_s", client[1:].execute, "dist.all_reduce(x)", block=True)
    try:
        timed("error_s", view.execute, "1 / 0 if rank == 2 else 1")
    except ipp.CompositeError:
        pass
    def restart():
        cluster.stop_cluster_sync()
        return start()
    cluster, client, view = timed("restart_s", restart)
    timed("stop_s", cluster.stop_cluster_sync)
print(json.dumps(found))
"""
NBDISTRIBUTED = r"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()

def cell(source):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        shell.run_cell(source).raise_error()
    return said.getvalue()

def start():
    cell("%dist_init --num-processes 4")
    while True:
        try:
            return magic._comm_manager.send_to_all("execute", "x = torch.ones(4)", timeout=1)
        except TimeoutError:
            assert all(process.poll() is None for process in magic._process_manager.processes)

def stop():
    with contextlib.redirect_stdout(io.StringIO()):
        magic._process_manager.shutdown()
    magic._comm_manager.shutdown()

def restart():
    stop()
    start()

cell("%load_ext nbdistributed")
magic = shell.magics_manager.registry["DistributedMagic"]
try:
    start()
    found["cold_s"] = [now() - began]
    stop()
    timed("warm_s", start)
    cell("%%distributed\ny = x + 1")  # the first one takes longer
    for _ in range(20):
        timed("cell_s", cell, "%%distributed\ny = x + 1")
    found["lines"] = [cell("%%distributed\nprint('the same')").count("the same")]
    assert "Timeout" in timed("pending_s", cell, "%%rank [0]\ndist.all_reduce(x)")
    assert "Error" not in timed("freed_s", cell, "%%rank [1,2,3]\ndist.all_reduce(x)")
    assert "ZeroDivisionError" in timed("error_s", cell, "%%distributed\n1 / 0 if rank == 2 else 1")
    timed("restart_s", restart)
    timed("stop_s", stop)
finally:
    for process in magic._process_manager.processes:
        process.kill()
print(json.dumps(found))
"""
MEASURES = {
    "cold_s": "start: four ranks that can add up, in a new process",
    "warm_s": "start again",
    "cell_s": "a cell on four idle ranks",
    "lines": "lines of the same output on four ranks",
    "pending_s": "a collective on rank 0 alone, until the cell is back",
    "freed_s": "the same call on the others, until all are free",
    "interrupt_s": "interrupt: until the cell is back",
    "error_s": "an error on one rank, until it is shown",
    "restart_s": "restart",
    "stop_s": "stop",
}
PROGRAMS = {"shardlive": OURS, "ipyparallel": IPYPARALLEL, "nbdistributed": NBDISTRIBUTED}
TO_INSTALL = {"ipyparallel": "ipyparallel==9.2.0", "nbdistributed": "nbdistributed==0.1.0"}


def run(rounds: int = 3) -> dict:
    """Return the samples and medians of MEASURES for ours and, where they are installed, the other two."""
    tools = [name for name in PROGRAMS if name == "shardlive" or importlib.util.find_spec(name)]
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in tools}
    for _ in range(rounds):
        for name in tools:
            for measure, values in _fresh_process(PROGRAMS[name]).items():
                samples[name].setdefault(measure, []).extend(values)
    versions = {name: importlib.metadata.version(name) for name in tools[1:]}
    result = {"benchmark": "live", "environment": environment(), "world_size": WORLD_SIZE, "versions": versions}
    result["tools"] = {}
    for name, found in samples.items():
        medians = {m: {"median": median(values), "samples": values} for m, values in found.items()}
        result["tools"][name] = {m: medians.get(m) for m in MEASURES}
    return result


def show(result: dict) -> None:
    title = f"{result['world_size']} live CPU ranks; {result['environment']['cpus']} CPUs; medians"
    table = Table("", *result["tools"], title=title, box=box.SIMPLE)
    for measure, words in MEASURES.items():
        table.add_row(words, *(_cell(measure, found[measure]) for found in result["tools"].values()))
    Console().print(table)
    for name in TO_INSTALL.keys() - result["tools"].keys():
        Console().print(f"{name} is not installed. To compare with it: pip install {TO_INSTALL[name]}")


def _cell(measure: str, found: dict | None) -> str:
    if found is None:
        return "-"
    return f"{found['median']:.0f}" if measure == "lines" else f"{found['median']:.3f} s"


def _fresh_process(program: str) -> dict[str, list[float]]:
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # nbdistributed starts "python"
    command, environ = [sys.executable, "-c", CLOCK + program], os.environ | {"PATH": path}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"a program of the benchmark failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
