"""A check of this machine for the course, and the tier that follows: each finding with its remedy."""

import os
import platform
import shutil
import sys
from importlib.metadata import version

import psutil
import torch
import torch.distributed as dist

from grading.boxes.sandbox import Bubblewrap
from shardcourse.cli.accelerators import accelerators
from shardcourse.cli.cards import ranks_on_cards, settings_of_cards
from shardcourse.cli.finding import Finding
from shardlab.launch import launch
from shardlab.tier import cards_here, choose, detect, precision

GIB = 1 << 30
_NEEDED_BYTES = 4 * GIB


def examine() -> list[Finding]:
    """Check everything. The checks of ranks are last: they really start them."""
    machine = [_python(), _torch(), *accelerators(), *settings_of_cards(), _cores(), _memory(), *_shared_memory()]
    return [*machine, *_packages(), _box(), _slurm(), _tier(), _ranks(), *ranks_on_cards()]


def _python() -> Finding:
    return Finding("Python", platform.python_version(), sys.version_info >= (3, 11), "install Python 3.11 or newer")


def _torch() -> Finding:
    backends = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]
    return Finding(
        "torch", f"{torch.__version__}, backends {', '.join(backends)}", "gloo" in backends, "reinstall torch"
    )


def _cores() -> Finding:
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", str(n), n >= 2, "with one core ranks take turns: it works, but no timing means anything")


def _memory() -> Finding:
    free = psutil.virtual_memory().available
    return Finding("memory", f"{free / GIB:.1f} GiB free", free >= _NEEDED_BYTES, "close something: 4 GiB are needed")


def _shared_memory() -> list[Finding]:
    if not os.path.isdir("/dev/shm"):
        return []
    free = shutil.disk_usage("/dev/shm").free
    remedy = "in a container, start it with --shm-size=1g (NCCL and data loaders want it; CPU ranks do not)"
    found = f"{free / GIB:.1f} GiB free" if free >= GIB else f"{free / 2**20:.0f} MiB free"
    needed = torch.cuda.is_available()
    return [Finding("shared memory", found, free >= (256 if needed else 64) << 20, remedy, needed)]


def _packages() -> list[Finding]:
    return [Finding(name, version(name)) for name in ("jupyterlab", "nbgrader", "papermill")]


def _box() -> Finding:
    obstacle = Bubblewrap.obstacle()
    remedy = "only to grade other people's work: install bubblewrap 0.8 or newer, and grade as an ordinary user"
    return Finding("bubblewrap", obstacle or "boxes can be made", not obstacle, remedy, needed=False)


def _slurm() -> Finding:
    sbatch = shutil.which("sbatch")
    remedy = "only for who trains or grades on a cluster that has it"
    return Finding("Slurm", "there" if sbatch else "no sbatch", bool(sbatch), remedy, needed=False)


def _tier() -> Finding:
    try:
        tier = detect()
    except (ValueError, RuntimeError) as error:
        return Finding("tier", str(error), False, "unset SHARDLAB_TIER, or set it to what this machine has")
    found, cards = f"{tier.name}: {tier.world_size} ranks on {tier.device}", cards_here()
    if not tier.gpus:
        idle = choose(cards)[1] if cards else ""
        return Finding("tier", found, not idle, f"{idle}: everything runs on CPU ranks", needed=False)
    idle = f"; {len(cards) - tier.gpus} GPUs stay idle" if len(cards) > tier.gpus else ""
    return Finding("tier", f"{found}, {precision(cards[: tier.gpus])}{idle}")


def _ranks() -> Finding:
    try:
        numbers = launch(_number, 4, timeout_s=60, device="cpu")
    except RuntimeError as error:
        remedy = "often a firewall, or a container, in which a process may not connect to 127.0.0.1; the whole error:"
        return Finding("4 CPU ranks", str(error).splitlines()[0], False, f"{remedy}\n{error}")
    found = "started, added up their numbers over local ports, and ended"
    return Finding("4 CPU ranks", found, numbers == [6] * 4, f"they added them up to {numbers}: please report this")


def _number() -> int:
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return int(total)
