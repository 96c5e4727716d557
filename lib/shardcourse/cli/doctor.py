"""A check of this machine for the course, and the tier that follows: each finding with its remedy."""

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import permutations

import psutil
import torch
import torch.distributed as dist

from grading.boxes.sandbox import Bubblewrap
from shardlab.launch import launch
from shardlab.tier import detect

GIB = 1 << 30
_NEEDED_BYTES = 4 * GIB


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    ok: bool = True
    remedy: str = ""  # what to do if `ok` is False
    needed: bool = True  # if False, only some users need it, and `remedy` says who

    @property
    def mark(self) -> str:
        return "ok" if self.ok else "!!" if self.needed else "--"

    def as_json(self) -> dict:
        return asdict(self)


def examine() -> list[Finding]:
    """Check everything. The check of the ranks is last: it really starts them."""
    machine = [_python(), _torch(), *_gpus(), _cores(), _memory(), *_shared_memory()]
    return [*machine, *_packages(), _box(), _slurm(), _tier(), _ranks()]


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
    gpus = Finding("GPUs", f"{len(names)}: {', '.join(sorted(set(names)))}; CUDA {torch.version.cuda}, NCCL {nccl}")
    return [gpus, _links(len(names))] if len(names) > 1 else [gpus]


def _links(n_gpus: int) -> Finding:
    pairs = list(permutations(range(n_gpus), 2))
    direct = sum(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)
    remedy = "messages go through the host's memory, which is slower: `nvidia-smi topo -m` shows how GPUs are wired"
    return Finding("GPU links", f"{direct} of {len(pairs)} ways are direct", direct == len(pairs), remedy, needed=False)


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
    found = f"{free / 2**20:.0f} MiB free"
    return [Finding("shared memory", found, free >= 64 << 20, remedy, needed=torch.cuda.is_available())]


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
    return Finding("tier", f"{tier.name}: {tier.world_size} ranks on {tier.device}")


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
