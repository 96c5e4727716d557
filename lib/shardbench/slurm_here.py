"""A temporary real Slurm whose nodes are all this machine. Needs Debian's slurm-wlm and munge, and root."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil

from shardbench.namespaces import administrators_path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
READY_S = 30.0

_CONFIGURATION = """
ClusterName=shardlab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
"""
_NODE = "NodeName={name} NodeAddr={address} Port={port} CPUs={cpus} RealMemory={mib} State=UNKNOWN\n"
_PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def obstacle() -> str:
    """Return why Slurm can't run here, or "" if it can."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=administrators_path())]:
        return f"no {', '.join(missing)} here: install slurm-wlm and munge"
    return "" if os.geteuid() == 0 else "its daemons want to be root"


@contextmanager
def slurm_here(nodes: int = 1) -> Iterator[str]:
    """Run Slurm inside the block, for `sbatch` and the like; yield its version. RuntimeError if it does not start."""
    with tempfile.TemporaryDirectory(prefix="shardlab-slurm-") as name, ExitStack() as stack:
        folder, host = Path(name), socket.gethostname()
        names = (host, *(f"{host}-{i}" for i in range(2, nodes + 1)))  # the first can be resolved: ranks meet there
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        (folder / "slurm.conf").write_text(_configuration(folder, names))
        variables = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": administrators_path()}
        stack.enter_context(patch.dict(os.environ, variables))
        munge = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        munge += ["--foreground", "--force", f"--socket={folder}/munge.socket"]
        for daemon in (["munged", *munge], ["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in names)):
            stack.enter_context(_daemon(folder, *daemon))
        _wait_until_idle(folder, names)
        yield subprocess.check_output(["sbatch", "--version"], text=True).strip()


def _configuration(folder: Path, names: tuple[str, ...]) -> str:
    """Return slurm.conf. Each node has all of the machine's cores, so several nodes count each core several times."""
    host, (port, *ports) = socket.gethostname(), _free_ports(1 + len(names))
    has = {"host": host, "cpus": psutil.cpu_count(), "mib": psutil.virtual_memory().total * 9 // 10 >> 20}
    nodes = (_NODE.format(name=name, address=f"127.0.0.{i + 1}", port=ports[i], **has) for i, name in enumerate(names))
    return _CONFIGURATION.format(folder=folder, host=host, port=port) + "".join(nodes) + _PARTITION


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(n)]


@contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[None]:
    with open(folder / f"{command[0]}{command[-1][-1:]}.out", "wb") as log:
        daemon = psutil.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        family = [daemon, *daemon.children(recursive=True)]
        daemon.terminate()
        _, alive = psutil.wait_procs(family, timeout=5)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=5)


def _wait_until_idle(folder: Path, names: tuple[str, ...]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        found = subprocess.run(["sinfo", "-hN", "-o", "%T"], capture_output=True, text=True, check=False)
        if found.stdout.split() == ["idle"] * len(names):
            return
        time.sleep(0.2)
    words = "\n".join(log.read_text(errors="replace")[-500:] for log in sorted(folder.glob("*.out")))
    state = found.stdout.split() or found.stderr.strip()
    raise RuntimeError(f"Slurm's nodes are {state} after {READY_S:.0f} s:\n{words}")
