"""List what a program needs to use this machine's GPUs: device files, folders and environment variables."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

DEV = Path("/dev")
_DEVICES = ("nvidia*", "nvhost*", "nvmap", "nvgpu", "dxg", "kfd")  # NVIDIA, its Jetsons, WSL2, AMD
_WIRING = ("bus/pci", "devices", "class/pci_bus", "module/nvidia")  # of /sys: NCCL reads how GPUs are wired
_WIRING_OF_AMD = ("class/kfd", "class/drm", "dev/char", "module/amdgpu")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY")
_VARIABLES += ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_OF_THE_NETWORK = ("NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_COMM_ID", "NCCL_IB_HCA")
_LIBRARIES = "LD_LIBRARY_PATH"


def variables(own_network: bool) -> dict[str, str]:
    """Return those of our environment variables that say which GPUs there are, and how to use them.

    `own_network`: leave out what names an interface of our network. In a box NCCL would look for it in vain, and fail.
    """
    kept = {k: v for k, v in os.environ.items() if k in _VARIABLES or k.startswith("NCCL_")}
    for name in _OF_THE_NETWORK if own_network else ():
        kept.pop(name, None)
    libraries = os.pathsep.join(map(str, _library_folders()))
    return kept | ({_LIBRARIES: libraries} if libraries else {})


def devices(dev: Path = DEV) -> list[str]:
    """Return the names of the GPUs' files and folders in `dev`. Raises OSError if it can't be listed."""
    names = sorted(os.listdir(dev))
    found = [name for name in names if any(fnmatch(name, pattern) for pattern in _DEVICES)]
    return [name for name in (*found, *(["dri"] if "kfd" in found and "dri" in names else [])) if (dev / name).exists()]


def wiring(shown: list[str]) -> list[Path]:
    """Return the folders of /sys that a program needs beside these devices."""
    names = [*(_WIRING if shown else ()), *(_WIRING_OF_AMD if "kfd" in shown else ())]
    return [path for name in names if (path := Path("/sys", name)).exists()]


def folders(course: Path, private: tuple[Path, ...]) -> list[Path]:
    """Return the folders of drivers' libraries, and the one by which the Multi-Process Service (MPS) is reached.

    Left out: a library folder without libraries, one inside of `course`, and one that is or holds a `private` folder.
    """
    mps = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    libraries = [p for p in _library_folders() if _has_libraries(p) and not p.resolve().is_relative_to(course)]
    libraries = [p for p in libraries if not any(q.is_relative_to(p.resolve()) for q in (course, *private))]
    return [*libraries, *([mps] if mps.is_absolute() and mps.is_dir() else [])]


def _library_folders() -> Iterator[Path]:
    """Yield the folders of LD_LIBRARY_PATH without empty and relative ones, which mean the program's own folder."""
    for entry in os.environ.get(_LIBRARIES, "").split(os.pathsep):
        if os.path.isabs(entry) and os.path.isdir(entry):
            yield Path(entry)


def _has_libraries(folder: Path) -> bool:
    return os.access(folder, os.R_OK) and any(".so" in name for name in os.listdir(folder))
