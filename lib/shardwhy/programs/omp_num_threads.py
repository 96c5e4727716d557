"""torchrun gives each rank one thread, and says so, if OMP_NUM_THREADS is not set."""

import os
import subprocess
import sys

os.environ.pop("OMP_NUM_THREADS", None)
if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
