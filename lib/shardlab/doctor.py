"""What this machine has for the course, and which tier that makes: each finding with its remedy."""

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version

import psutil
import torch
import torch.distributed as dist

from shardlab.launch import launch
from shardlab.tier import detect

GIB = 1 << 30
_NEEDED_BYTES = 4 * GIB
_LOCAL_PORTS = "the usual reason is a firewall, or a container, in which a process may not connect to 127.0.0.1"


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    ok: bool = True
    remedy: str = ""  # what to do if it is not ok

    def as_json(self) -> dict:
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything, the ranks last: they are really started."""
    return [_python(), _torch(), *_gpus(), _cores(), _memory(), *_shared_memory(), *_packages(), _tier(), _ranks()]


def _python() -> Finding:
    return Finding("Python", platform.python_version(), sys.version_info >= (3, 11), "install Python 3.11 or newer")


def _torch() -> Finding:
    backends = [name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()]
    return Finding(
        "torch", f"{torch.__version__}, backends {', '.join(backends)}", "gloo" in backends, "reinstall torch"
    )


def _gpus() -> list[Finding]:
    if not torch.cuda.is_available():
        return [Finding("GPUs", "none: everything runs on CPU ranks")]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return [Finding("GPUs", f"{len(names)}: {', '.join(sorted(set(names)))}; CUDA {torch.version.cuda}, NCCL {nccl}")]


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
    return [Finding("shared memory", f"{free / 2**20:.0f} MiB free", free >= 64 << 20, remedy)]


def _packages() -> list[Finding]:
    return [Finding(name, version(name)) for name in ("jupyterlab", "nbgrader", "papermill")]


def _tier() -> Finding:
    try:
        tier = detect()
    except (ValueError, RuntimeError) as error:
        return Finding("tier", str(error), False, "unset SHARDLAB_TIER, or set it to what this machine has")
    return Finding("tier", f"{tier.name}: {tier.world_size} ranks on {tier.device}")


def _ranks() -> Finding:
    try:
        numbers = launch(_number, 4, timeout_s=60, device="cpu")
    except RuntimeError as error:
        return Finding(
            "4 CPU ranks", str(error).splitlines()[0], False, "see the whole error: shardlab doctor --verbose"
        )
    return Finding(
        "4 CPU ranks", "started, added up their numbers, and ended", numbers == [6] * 4, "please report this"
    )


def _number() -> int:
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return int(total)
