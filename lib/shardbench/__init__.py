"""Benchmarks for your machine: the library's cost compared with torch's own tools (`launch`, `ddp`, `parallel`), the
accuracy of its simulations and plans (`interconnect`, `shaped`, `plan`), and a beginner's waiting time (`first`).

Each of these modules has `run() -> dict`, whose numbers, strings and lists can be written to a JSON file, and
`show(result)`, which prints them as a table. Results of one machine are in `lib/benchmarks/`.
"""

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import torch


def environment() -> dict:
    """Return what the figures depend on, without host names and paths, so that a result can be published."""
    release = re.match(r"[\d.]*", platform.release())  # the number alone: the rest may name a site's own build
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {release[0]} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],  # over 1, 5 and 15 minutes, before the run
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu_model() -> str:
    """Return the CPU's name: from the kernel on Linux, else from Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
