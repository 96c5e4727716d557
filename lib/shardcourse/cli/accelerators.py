"""Which GPUs this machine has, by their files, and which of them torch uses; if it uses none, why, and what works."""

import os
import re
from pathlib import Path

import torch

from shardcourse import nvidia_smi
from shardcourse.cli.finding import Finding

NEEDED_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA's major version -> the oldest driver that runs it
_FOR_CUDA_12 = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
_ON_CPUS = "everything runs on CPU ranks"
_VERSION = re.compile(r"\b\d{3}\.\d+(\.\d+)?\b")


def accelerators(root: Path = Path("/")) -> list[Finding]:
    """Return what is found below `root` (another folder in a test) and what torch says."""
    found = [_gpus_in_use()] if torch.cuda.is_available() else [_no_gpu_in_use(root)]
    return [*_wsl(root), *found, *(_kernels() if torch.cuda.is_available() else [])]


def _gpus_in_use() -> Finding:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cards = f"{len(names)}: {', '.join(sorted(set(names)))}"
    if torch.version.hip:
        return Finding("GPUs", f'{cards}; AMD, ROCm {torch.version.hip}: torch calls them "cuda". Not tried so far')
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return Finding("GPUs", f"{cards}; CUDA {torch.version.cuda}, NCCL {nccl}")


def _kernels() -> list[Finding]:
    """Check that torch has kernels for the cards: its builds for CUDA 13 have none for a V100."""
    capabilities, built_for = set(nvidia_smi.query("compute_cap")), torch.cuda.get_arch_list()
    without = sorted(c for c in capabilities if re.fullmatch(r"\d+\.\d", c) and not _has_kernels(c, built_for))
    if not without:
        return []
    found = f"none for compute capability {', '.join(without)}; torch {torch.__version__} has {' '.join(built_for)}"
    return [Finding("GPU kernels", found, False, f"install a build that has them: {_FOR_CUDA_12}")]


def _has_kernels(capability: str, built_for: list[str]) -> bool:
    """Machine code (sm_80) runs on cards of its major version that are as new; other code (compute_80) on all newer."""
    card = tuple(map(int, capability.split(".")))
    for name in built_for:
        kind, digits = re.match(r"([a-z]+)_(\d+)", name).groups()
        built = int(digits[:-1]), int(digits[-1])
        if built <= card and (kind == "compute" or built[0] == card[0]):
            return True
    return False


def _no_gpu_in_use(root: Path) -> Finding:
    n_nvidia = len(list(root.glob("dev/nvidia[0-9]*"))) or len(nvidia_smi.query("uuid"))
    is_amd, shown = (root / "dev" / "kfd").exists(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if n_nvidia and shown is not None and shown.strip() in ("", "-1"):
        return Finding("GPUs", f"{n_nvidia} of NVIDIA's, hidden by CUDA_VISIBLE_DEVICES={shown!r}: {_ON_CPUS}")
    if n_nvidia:
        return _nvidia_unseen(root, n_nvidia)
    if is_amd and torch.version.hip:
        remedy = f"may you read /dev/kfd and /dev/dri? You should be in the groups render and video. torch: {_why()}"
        return Finding("GPUs", f"AMD's, and torch (ROCm {torch.version.hip}) sees none", False, remedy)
    if is_amd:
        remedy = "only to try them: a torch for ROCm, from https://pytorch.org/get-started/locally"
        return Finding("GPUs", f"AMD's; this torch is not built for ROCm: {_ON_CPUS}", False, remedy, needed=False)
    if torch.backends.mps.is_available():
        return Finding("GPUs", f"Apple's (MPS): ranks can't exchange tensors on it, so {_ON_CPUS}")
    if torch.xpu.is_available():
        return Finding("GPUs", f"Intel's (XPU): the course knows CPUs and CUDA only, so {_ON_CPUS}")
    return Finding("GPUs", f"none: {_ON_CPUS}")


def _nvidia_unseen(root: Path, n: int) -> Finding:
    driver, cuda = _driver(root), torch.version.cuda
    built = f"built for CUDA {cuda}" if cuda else "built without CUDA"
    found = f"{n} of NVIDIA's, and torch sees none: driver {driver or 'unknown'}, torch {torch.__version__} {built}"
    needed = NEEDED_DRIVER.get(int(cuda.split(".")[0]), 0) if cuda else 0
    if not cuda:
        remedy = (
            "install a build for CUDA: pip install --force-reinstall torch, where pip is not told to take CPU builds"
        )
    elif not driver:
        remedy = "no driver answers. In a container: start it with --gpus all (docker) or --nv (apptainer)"
    elif int(driver.split(".")[0]) < needed:
        remedy = f"CUDA {cuda} needs driver {needed} or newer: update the driver, or {_FOR_CUDA_12}"
    else:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        remedy = f"the driver is new enough; CUDA_VISIBLE_DEVICES is {shown!r}; torch: {_why()}"
    return Finding("GPUs", found, False, remedy)


def _driver(root: Path) -> str:
    """Version of NVIDIA's driver; "" if neither the kernel nor nvidia-smi tells it."""
    told = root / "proc" / "driver" / "nvidia" / "version"
    words = told.read_text() if told.exists() else " ".join(nvidia_smi.query("driver_version"))
    version = _VERSION.search(words)
    return version[0] if version else ""


def _why() -> str:
    """Return torch's own words when it is made to open a GPU."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "no error"


def _wsl(root: Path) -> list[Finding]:
    release = root / "proc" / "sys" / "kernel" / "osrelease"
    if not release.exists() or "microsoft" not in release.read_text().lower():
        return []
    gpu = "its GPUs are here" if (root / "dev" / "dxg").exists() else "no GPU of it is here"
    return [Finding("WSL2", f"Linux in Windows; {gpu}. The driver is Windows' own: install none in Linux")]
