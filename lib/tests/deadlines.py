"""Deadlines for tests: as long as stated on an idle machine, and longer in proportion on a busy one.

The unit is measured when a run of tests begins (conftest.py): four Python processes start together and import numpy.
"""

import os
import subprocess
import sys
import time

UNIT = "SHARDLAB_TEST_UNIT_S"
IDLE_UNIT_S = 0.5  # no more than that on two idle cores
MARGIN = 2  # a machine that was idle at the start may be busy later


def deadline_s(idle_s: float) -> float:
    """Seconds to wait for what should be done after `idle_s` seconds on an idle machine."""
    return idle_s * MARGIN * max(1.0, measured_unit_s() / IDLE_UNIT_S)


def measured_unit_s() -> float:
    """Seconds of the unit, measured by the first process of a run that asks; its children are told."""
    if UNIT not in os.environ:
        os.environ[UNIT] = str(max(_unit_s() for _ in range(3)))
    return float(os.environ[UNIT])


def _unit_s() -> float:
    began = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(4)]:
        process.wait()
    return time.monotonic() - began
