"""Under torchrun, rank 1 is killed by signal 9, as by the kernel when the host has no memory left: exitcode -9."""

import os
import signal
import subprocess
import sys

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
