"""A shell reports how its command ended: the process sends itself the signal of a segmentation fault."""

import subprocess
import sys

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
subprocess.run(["bash", "-c", f"{sys.executable} -c '{CRASH}'; true"], check=False)
