"""Jobs of the course's training script under torchrun, started, watched, and sent signals: for lesson 16."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import torch
from torch import Tensor

from shardcourse.repository import ROOT

SCRIPT = ROOT / "course" / "train.py"
USES_GPUS = torch.cuda.device_count() >= 4  # a GPU for each rank of the lesson; all its jobs use the same device
Steps = dict[int, dict[str, float]]  # by step: what its line in the log says


class Job:
    """One run of the script on `ranks` ranks of this machine, all gone when the block ends or the deadline is over.

    `options` are the script's, with underscores: `global_batch=12, resume=True`. `lines` is what it has printed so far.
    """

    def __init__(self, script: Path, ranks: int, out: Path, *, deadline_s: float = 300, **options: object) -> None:
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in options.items()
        ]
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
        command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]  # a machine's name may have no address
        command += ["--monitor-interval=0.2", str(script), f"--out={out}", *flags]
        settings = (
            os.environ
            | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
            | ({} if USES_GPUS else {"CUDA_VISIBLE_DEVICES": ""})
        )
        self.out, self.lines, self.errors = out, list[str](), tempfile.TemporaryFile("w+")
        pipes = {"stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        self.agent = subprocess.Popen(command, env=settings, start_new_session=True, **pipes)
        self.too_late = ""
        self.deadline = threading.Timer(deadline_s, self._give_up, [deadline_s])
        self.deadline.start()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.agent.stdout.close()
        self.errors.close()

    def read_until(self, step: int) -> None:
        """Read the output up to the line of this step; RuntimeError if the job ends before."""
        for line in self.agent.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(f"step {step} "):
                return
        raise RuntimeError(f"the job ended before step {step}: {self.error()}")

    def end(self) -> int:
        """Read the rest of the output; return torchrun's exit code, 0 if every rank ended with 0."""
        self.lines += [line.rstrip() for line in self.agent.stdout]
        return self.agent.wait()

    def send(self, signal: int, rank: int) -> None:
        """Send a signal to one rank."""
        os.kill(self._ranks()[rank].pid, signal)

    def stack(self, rank: int, within_s: float = 30) -> str:
        """Return the line of the script in which this rank was when it last got SIGUSR1, such as "184 in losses"."""
        file, deadline = self.out / f"stack-{rank}.txt", time.monotonic() + within_s
        while time.monotonic() < deadline:
            last = file.read_text().rpartition("Current thread")[2]
            if found := re.search(rf'{SCRIPT.name}", line (\d+ in .*)', last):
                return found[1]
            time.sleep(0.1)
        return "no answer"

    def error(self) -> str:
        """Return why the job was ended, or the script's own error message, or else the last line of its errors."""
        if self.too_late:
            return self.too_late
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return next((line for line in lines if line.startswith(f"{SCRIPT.name}: ")), "".join(lines[-1:]))

    def kill(self) -> None:
        """Kill torchrun and its ranks, found by their parent: torchrun gives each a session of its own."""
        self.deadline.cancel()
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self.agent.pid)
            for process in [agent, *agent.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.agent.wait()

    def _give_up(self, deadline_s: float) -> None:
        self.too_late = f"it had not ended after {deadline_s:.0f} s, and was killed"
        self.kill()

    def _ranks(self) -> list[psutil.Process]:
        children = psutil.Process(self.agent.pid).children()
        return sorted(children, key=lambda process: int(process.environ()["RANK"]))


def run(script: Path, ranks: int, out: Path, **options: object) -> list[str]:
    """Run the script to its end and return the lines that it prints; RuntimeError if it fails."""
    with Job(script, ranks, out, **options) as job:
        if code := job.end():
            raise RuntimeError(f"the job on {ranks} ranks ended with {code}: {job.error()}")
        return job.lines


def steps(lines: list[str]) -> Steps:
    """Return what the log says of each step: {20: {"loss": 3.1, "norm": 0.8, ...}, ...}."""
    pairs = [dict(pair.rsplit(" ", 1) for pair in line.split("  ")) for line in lines if line.startswith("step ")]
    return {int(line["step"]): {name: float(value) for name, value in line.items()} for line in pairs}


def differences(a: Steps, b: Steps) -> dict[int, float]:
    """Return by how much two runs' losses differ, for each step that both have."""
    return {step: abs(a[step]["loss"] - b[step]["loss"]) for step in sorted(a.keys() & b.keys())}


def peak_flops(ranks: int) -> float:
    """Return the FLOP/s that a rank can reach in fp32 matrix products: its GPU's, or its share of all cores'."""
    return _measured_flops() / (1 if USES_GPUS else ranks)


@functools.cache  # so that shares are parts of one measurement
def _measured_flops() -> float:
    device, n = ("cuda", 8192) if USES_GPUS else ("cpu", 512)
    threads, x = torch.get_num_threads(), torch.randn(n, n, device=device)
    torch.set_num_threads(os.cpu_count())
    seconds = min(_seconds_of_products(x, times=4) for _ in range(30))  # the best of many: others may be computing, too
    torch.set_num_threads(threads)
    return 4 * 2 * n**3 / seconds


def _seconds_of_products(x: Tensor, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        y = x @ x
    y.sum().item()  # waits for a GPU
    return time.perf_counter() - began


def script_module(script: Path = SCRIPT) -> ModuleType:
    """Return the training script as a module, to call its functions on ranks that are there already."""
    spec = importlib.util.spec_from_file_location("whole_job_script", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
