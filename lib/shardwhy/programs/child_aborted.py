"""Under torchrun, rank 1 aborts, as C++ code does after an error that nobody catches: exitcode -6."""

import os
import subprocess
import sys

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
if os.environ["RANK"] == "1":
    os.abort()
