"""Under torchrun, rank 1 reads address 0: exitcode -11, a segmentation fault."""

import ctypes
import os
import subprocess
import sys

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
if os.environ["RANK"] == "1":
    ctypes.string_at(0)
