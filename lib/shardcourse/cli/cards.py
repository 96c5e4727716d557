"""How this machine's GPUs are set up and wired, whether ranks on them can talk, and whether a box shows them."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import combinations, permutations

import torch
import torch.distributed as dist

from grading.boxes.sandbox import Bubblewrap, Limits
from grading.boxes.sandbox.boxed_program import clean_environment
from shardcourse import nvidia_smi
from shardcourse.cli.finding import Finding
from shardlab.launch import launch, local_device

_SHARING = 4  # ranks of tier gpu1
_MESSAGE = 4 << 20  # floats: 16 MiB, enough for NCCL to take the way that it takes for gradients
_WAYS = {"NV": "NVLink", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe", "NODE": "the host", "SYS": "the host"}
_COUNT = (
    "import torch; n = torch.cuda.device_count(); print(sum(int(torch.ones(1, device=f'cuda:{i}')) for i in range(n)))"
)


def settings_of_cards() -> list[Finding]:
    """Check what needs no rank; nothing without GPUs."""
    if not torch.cuda.is_available():
        return []
    return [*_compute_mode(), *_mig(), *_links(torch.cuda.device_count()), _compiler()]


def ranks_on_cards() -> list[Finding]:
    """Start ranks on the GPUs, and count the GPUs from inside a box; nothing without GPUs."""
    if not torch.cuda.is_available():
        return []
    n = torch.cuda.device_count()
    over_nccl = [_all_reduce("NCCL", n, f"an all_reduce over {n} GPUs")] if n > 1 else []
    sharing = [_all_reduce("shared GPUs", _SHARING, f"{_SHARING} ranks on {n}")] if n < _SHARING else []
    return [*over_nccl, *sharing, *_in_a_box(n)]


def _compute_mode() -> list[Finding]:
    modes = Counter(nvidia_smi.query("compute_mode"))
    odd = sorted(mode for mode in modes if mode.startswith(("Exclusive", "Prohibited")))
    remedy = "a GPU then takes one process, but gpu1's ranks share one, and so do the two jobs that a check compares. "
    remedy += "An administrator's nvidia-smi -c DEFAULT allows it; so does MPS (nvidia-cuda-mps-control -d)"
    return [Finding("compute mode", f"{mode} on {modes[mode]} of {modes.total()} GPUs", False, remedy) for mode in odd]


def _mig() -> list[Finding]:
    modes = nvidia_smi.query("mig.mode.current")
    if not (n := modes.count("Enabled")):
        return []
    remedy = "a process sees one part of a GPU, and NCCL connects no two parts: use tier gpu1, or a GPU without MIG"
    return [Finding("MIG", f"{n} of {len(modes)} GPUs are divided", False, remedy, needed=False)]


def _links(n: int) -> list[Finding]:
    if n < 2:
        return []
    ways = list(permutations(range(n), 2))
    direct = sum(torch.cuda.can_device_access_peer(a, b) for a, b in ways)
    wires = ", ".join(f"{count} by {wire}" for wire, count in _wires(n).items())
    found = f"{direct} of {len(ways)} ways are direct" + (f"; pairs: {wires}" if wires else "")
    remedy = "messages go through the host's memory, which is slower: `nvidia-smi topo -m` shows how GPUs are wired"
    return [Finding("GPU links", found, direct == len(ways), remedy, needed=False)]


def _wires(n: int) -> Counter[str]:
    """Pairs of GPUs by what connects them, from nvidia-smi's table; empty if it has no table for `n` GPUs."""
    lines = nvidia_smi.ask("topo", "-m").splitlines()
    rows = [line.split()[1 : n + 1] for line in lines if re.match(r"\s*GPU\d+\s.*\bX\b", line)]
    if len(rows) != n or any(len(row) != n for row in rows):
        return Counter()
    kinds = (rows[a][b].rstrip("0123456789") for a, b in combinations(range(n), 2))
    return Counter(_WAYS.get(kind, kind) for kind in kinds)


def _compiler() -> Finding:
    found = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    remedy = "only for what compiles on a GPU, as torch.compile and AdamW in 8 bits do: install gcc and g++"
    return Finding("compiler", found or "none", bool(found), remedy, needed=False)


def _all_reduce(what: str, n_ranks: int, done: str) -> Finding:
    try:
        right = launch(_adds_up, n_ranks, timeout_s=60, device="cuda")
    except (RuntimeError, ValueError) as error:
        remedy = (
            "NCCL_DEBUG=INFO shardlab doctor shows what NCCL tries; if it hangs between two GPUs, NCCL_P2P_DISABLE=1"
        )
        return Finding(what, str(error).splitlines()[0], False, f"{remedy}. The whole error:\n{error}")
    remedy = "a link between GPUs loses data, often for the IOMMU or ACS of a virtual machine: try NCCL_P2P_DISABLE=1"
    wrong = [rank for rank, sums_up in enumerate(right) if not sums_up]
    return Finding(what, f"{done}: {f'wrong on ranks {wrong}' if wrong else 'right'}", not wrong, remedy)


def _adds_up() -> bool:
    total = torch.full((_MESSAGE,), dist.get_rank() + 1.0, device=local_device())
    dist.all_reduce(total)
    n = dist.get_world_size()
    return bool((total == n * (n + 1) / 2).all())


def _in_a_box(n: int) -> list[Finding]:
    if Bubblewrap.obstacle():
        return []  # another finding says why there is no box
    command = Bubblewrap(Limits.of_this_machine()).command([sys.executable, "-c", _COUNT])
    told = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    try:
        seen = subprocess.run(command, env=clean_environment("/tmp", own_namespaces=True), **told)
    except subprocess.TimeoutExpired:
        return [
            Finding("GPUs in a box", "no answer in 120 s", False, "only to grade: grade without boxes", needed=False)
        ]
    last = (seen.stderr.strip().splitlines() or [""])[-1]
    found = f"{seen.stdout.strip()} of {n} work" if not seen.returncode else f"they can't be used: {last}"
    remedy = "only to grade: a submission's ranks would find too few GPUs. Please report this, with `ls -l /dev`"
    return [Finding("GPUs in a box", found, seen.stdout.strip() == str(n), remedy, needed=False)]
