"""Launching, simulated networks, `check` and releasing work where what only Linux has fails: see no_linux/."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import deadline_s

ROOT = Path(__file__).parents[3]
NO_LINUX = Path(__file__).with_name("no_linux")
QUICK = "not night and not alone and not browser"


def without_linux(*command: str) -> subprocess.CompletedProcess:
    """Run Python with these arguments, and with none of what only Linux has."""
    paths = os.pathsep.join([str(NO_LINUX), str(ROOT / "lib"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=deadline_s(500),
    )


@pytest.mark.parametrize(
    "program",
    [
        "open('/proc/self/stat')",
        "import os; os.sched_getaffinity(0)",
        "import os; os.listdir('/dev/shm')",
        "import ctypes; ctypes.CDLL(None).prctl",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))",
        "import shutil; open(shutil.which('bwrap') or '/nowhere')",
    ],
)
def test_what_only_linux_has_fails(program):
    done = without_linux("-c", program)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].split(":")[0] in ("FileNotFoundError", "AttributeError", "ValueError")


@pytest.mark.night
@pytest.mark.parametrize(
    "tests",
    [
        ["lib/tests/lab/launch"],
        ["lib/tests/sim"],
        ["lib/tests/live", "-k", "not computes"],  # on a Mac a busy machine's rank may be said to wait
        ["grading/tests/student"],
        ["grading/tests/gradebook/test_release.py"],
    ],
    ids=["launch", "network", "live", "check", "release"],
)
def test_a_part_is_green_without_linux(tests):
    done = without_linux("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK, *tests)
    assert done.returncode == 0, done.stdout[-5000:]
