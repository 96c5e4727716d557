"""torchrun gives each rank one thread, and says so, if OMP_NUM_THREADS is not set."""

import os
import subprocess
import sys

os.environ.pop("OMP_NUM_THREADS", None)
if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
