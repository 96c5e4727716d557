"""The start-up time of four CPU ranks, from the call to the result, compared with torchrun.

A round is one fresh Python process and one torchrun of the same work. The process launches once cold and then several
times warm, as a notebook does cell by cell. The two alternate, so that both see the machine's good and bad moments.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from shardbench import environment

WORLD_SIZE = 4
FRESH_PROCESS = """
import json, sys, time
start = time.perf_counter()
from shardlab import launch
import_s = time.perf_counter() - start

def meet():
    import torch
    import torch.distributed as dist
    total = torch.ones(())
    dist.all_reduce(total)
    return total.item()

def launch_s(world_size):
    start = time.perf_counter()
    assert launch(meet, world_size, device="cpu", stream=False) == [world_size] * world_size
    return time.perf_counter() - start

world_size, warm_launches = map(int, sys.argv[1:])
print(json.dumps({"import_s": [import_s], "first_s": [launch_s(world_size)]}), flush=True)
print(json.dumps({"warm_s": [launch_s(world_size) for _ in range(warm_launches)]}))
"""
TORCHRUN_SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(())
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
"""
MEASURES = {
    "process_s": "fresh process, to first result",
    "import_s": "  its import of shardlab, torch",
    "first_s": "  its first launch",
    "warm_s": "each launch after that",
    "torchrun_s": "torchrun, start to end",
}


def run(rounds: int = 3, warm_launches: int = 4) -> dict:
    """Return all samples and the median of each of MEASURES, in seconds. Each round has `warm_launches`."""
    result = {"benchmark": "launch", "environment": environment(), "world_size": WORLD_SIZE}
    samples: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(rounds):
        for name, values in _fresh_process(warm_launches).items():
            samples[name] += values
        samples["torchrun_s"].append(_torchrun())
    return result | {name: {"median": median(values), "samples": values} for name, values in samples.items()}


def show(result: dict) -> None:
    title = f"{result['world_size']} CPU ranks start, all_reduce and end; {result['environment']['cpus']} CPUs"
    table = Table("", "median", "samples", title=title, box=box.SIMPLE)
    for name, words in MEASURES.items():
        m = result[name]
        table.add_row(words, f"{m['median']:.2f} s", ", ".join(f"{s:.2f}" for s in m["samples"]))
    Console().print(table)


def _fresh_process(warm_launches: int) -> dict[str, list[float]]:
    start = time.perf_counter()
    command = [sys.executable, "-c", FRESH_PROCESS, str(WORLD_SIZE), str(warm_launches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stdout.readline())
        process_s = time.perf_counter() - start
        warm = json.loads(process.stdout.readline())
    return {"process_s": [process_s], **first, **warm}


def _torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "meet.py")
        script.write_text(TORCHRUN_SCRIPT)
        # standalone: torchrun takes a free port, so that two at the same time don't collide
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={WORLD_SIZE}"]
        start = time.perf_counter()
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
        return time.perf_counter() - start
