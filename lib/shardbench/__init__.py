"""What the library costs beside torch's own tools, on your machine (`launch`, `ddp`, `parallel`);
whether what it simulates and plans is true (`interconnect`, `shaped`, `plan`); and what a beginner waits for (`first`).

Each of these modules has `run() -> dict`, of plain numbers, strings and lists that go into a JSON file as they are, and
`show(result)`, which prints them as a table. Results of one machine are in `lib/benchmarks/`.
"""

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import torch


def environment() -> dict:
    """What a figure depends on. Neither host names nor paths, so that a result can be published."""
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
    """On Linux the kernel knows its name; elsewhere what Python knows has to do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
